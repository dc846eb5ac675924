//! The reference of failure classes names each class that the program has, and no other.

use handstamp_core::FailureClass;

#[test]
fn the_reference_lists_each_class_with_what_to_do() {
    let path = crate::common::root().join("docs/reference/classes.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let listed: Vec<&str> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [class, meaning, again, todo] = cells[..] else { panic!("no row of four cells: {row}") };
            assert!(meaning.len() > 20 && !again.is_empty() && todo.len() > 20, "{row}");
            class.trim_matches('`')
        })
        .collect();
    let all: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
    assert_eq!(listed, all, "in the order of the program");
}
