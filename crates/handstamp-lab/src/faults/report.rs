//! What a row of `lab faults` came to, the same for all of its commands.

use serde::Serialize;

/// Where a row stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "standing", content = "why")]
pub enum Standing {
    /// Nothing doubled, nothing lost, and the row's own conditions held.
    Held,
    /// A negative control that failed, as it must.
    Control,
    /// Something was doubled, lost or given up.
    Violated(String),
    /// The row proves nothing, and why.
    Inconclusive(String),
    /// The row cannot be run here, and why.
    Refused(String),
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What was run.
    pub name: String,
    /// Names and values of its columns.
    pub cells: Vec<(&'static str, String)>,
    /// Where it stands.
    #[serde(flatten)]
    pub standing: Standing,
}

/// What all rows come to together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every row held.
    Held,
    /// A row was violated: exit code 5.
    Violated,
    /// No row was violated, and one proves nothing or could not be run: exit code 6.
    Inconclusive,
}

/// Sums the rows up.
#[must_use]
pub fn outcome(rows: &[Row]) -> Outcome {
    if rows.iter().any(|row| matches!(row.standing, Standing::Violated(_))) {
        return Outcome::Violated;
    }
    let proven = |row: &Row| matches!(row.standing, Standing::Held | Standing::Control);
    if rows.is_empty() || !rows.iter().all(proven) {
        return Outcome::Inconclusive;
    }
    Outcome::Held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_outweighs_a_row_that_proves_nothing_and_no_row_proves_nothing() {
        let row = |standing| Row { name: "row".to_owned(), cells: vec![], standing };
        let inconclusive = || row(Standing::Inconclusive("few".to_owned()));
        let refused = || row(Standing::Refused("no listener".to_owned()));
        let violated = || row(Standing::Violated("1 doubled".to_owned()));
        assert_eq!(outcome(&[row(Standing::Held), row(Standing::Control)]), Outcome::Held);
        assert_eq!(outcome(&[row(Standing::Held), inconclusive()]), Outcome::Inconclusive);
        assert_eq!(outcome(&[row(Standing::Held), refused()]), Outcome::Inconclusive);
        assert_eq!(outcome(&[inconclusive(), violated()]), Outcome::Violated);
        assert_eq!(outcome(&[]), Outcome::Inconclusive);
    }
}
