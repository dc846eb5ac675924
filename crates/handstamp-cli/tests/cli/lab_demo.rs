//! `lab demo`, in every build that has SQLite: what one crash does, told by real processes that really die.

use crate::common::Place;

/// A place whose temporary files lie where the test can look.
fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    let tmp = place.path("tmp").display().to_string();
    place.env("TMPDIR", &tmp)
}

fn left(place: &Place) -> usize {
    std::fs::read_dir(place.path("tmp")).unwrap().count()
}

#[test]
fn every_story_ends_as_told_and_nothing_is_left() {
    let place = place();
    let object = place.quiet(&["lab", "demo", "--json"]).exits(0).json();
    assert_eq!(object["as_told"], true, "{object}");
    let stories = object["stories"].as_array().unwrap();
    let ends: Vec<_> = stories
        .iter()
        .map(|story| {
            assert_eq!(story["really_killed"], true, "{story}");
            let ids =
                |key: &str| story[key].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
            let (doubled, lost): (Vec<&str>, Vec<&str>) = (ids("doubled"), ids("lost"));
            (story["story"].as_str().unwrap(), story["balance"].as_i64().unwrap(), doubled, lost)
        })
        .collect();
    let expected = [
        ("no-inbox", 600, vec!["evt-2"], vec![]),
        ("handstamp", 500, vec![], vec![]),
        ("offset-first", 400, vec![], vec!["evt-1"]),
        ("look-up-first", 600, vec!["evt-2"], vec![]),
    ];
    assert_eq!(ends, expected);
    let log = stories[1]["log"].to_string();
    assert!(log.contains("skipped duplicate evt-2"), "{log}");
    assert_eq!(left(&place), 0);
}

#[test]
fn people_get_a_sentence_for_each_story_and_keep_the_files_if_they_ask() {
    let place = place();
    let told = place.quiet(&["lab", "demo", "--keep"]).exits(0);
    let (unwrapped, told) = (told.unwrapped(), told.stdout);
    for words in
        ["ends at 600, not at 500", "(\"skipped duplicate evt-2\"); account 1 ends at 500", "evt-1 never"]
    {
        assert!(unwrapped.contains(words), "{words}:\n{told}");
    }
    assert_eq!(told.lines().filter(|line| line.contains("Killed ")).count(), 4, "{told}");
    assert!(told.contains("kept: ") && left(&place) == 1, "{told}");
}
