//! What a row of `lab faults` came to, the same for all of its commands.

use crate::checker::Verdict;
use crate::kill::Conclusion;
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

impl Standing {
    /// The words of the table.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Control => "did harm, as it must",
            Self::Violated(_) => "VIOLATED",
            Self::Inconclusive(_) => "inconclusive",
            Self::Refused(_) => "refused",
        }
    }
}

impl Row {
    /// Why it did not hold, with its name.
    fn because(&self) -> Option<String> {
        let name = &self.name;
        match &self.standing {
            Standing::Held | Standing::Control => None,
            Standing::Refused(why) => Some(format!("{name}: refused: {why}")),
            Standing::Violated(why) | Standing::Inconclusive(why) => Some(format!("{name}: {why}")),
        }
    }
}

/// What all rows prove together (pure). A broken promise outweighs everything.
#[must_use]
pub fn conclude(rows: &[&Row]) -> Conclusion {
    let violated = rows.iter().filter(|row| matches!(row.standing, Standing::Violated(_)));
    let violated: Vec<String> = violated.filter_map(|row| row.because()).collect();
    if !violated.is_empty() {
        return Conclusion::Violated(violated);
    }
    if rows.is_empty() {
        return Conclusion::Inconclusive(vec!["nothing was run".to_owned()]);
    }
    let doubts: Vec<String> = rows.iter().filter_map(|row| row.because()).collect();
    if doubts.is_empty() { Conclusion::Kept } else { Conclusion::Inconclusive(doubts) }
}

/// One line about a verdict that is not clean.
pub(super) fn violation(verdict: &Verdict) -> String {
    format!(
        "{} doubled {:?}, {} lost {:?}, {} never sent, {} dead letters, accounts that do not add up: {:?}",
        verdict.doubled,
        verdict.doubled_ids,
        verdict.lost,
        verdict.lost_ids,
        verdict.unsent,
        verdict.dead_lettered,
        verdict.accounts_off
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_outweighs_a_row_that_proves_nothing_and_no_row_proves_nothing() {
        let row = |standing| Row { name: "row".to_owned(), cells: vec![], standing };
        let (held, control) = (row(Standing::Held), row(Standing::Control));
        let inconclusive = row(Standing::Inconclusive("few".to_owned()));
        let refused = row(Standing::Refused("no listener".to_owned()));
        let violated = row(Standing::Violated("1 doubled".to_owned()));
        assert_eq!(conclude(&[&held, &control]), Conclusion::Kept);
        let because = |why: &str| Conclusion::Inconclusive(vec![why.to_owned()]);
        assert_eq!(conclude(&[&held, &inconclusive]), because("row: few"));
        assert_eq!(conclude(&[&held, &refused]), because("row: refused: no listener"));
        assert_eq!(
            conclude(&[&inconclusive, &violated]),
            Conclusion::Violated(vec!["row: 1 doubled".to_owned()])
        );
        assert!(matches!(conclude(&[]), Conclusion::Inconclusive(_)));
    }
}
