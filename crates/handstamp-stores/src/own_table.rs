//! Level 0 on a table of the user's own: identifiers, checked, and the one statement made of them (pure).
//!
//! Authoritative: the table's unique key on the columns that are named. Without one the database refuses the
//! statement. Nothing but claiming works on such a table: no state, no digest, no dead letter, no pruning.

use handstamp_core::{StoreError, StoreErrorKind};

/// What the id's column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdColumn {
    /// Text.
    #[default]
    Text,
    /// A UUID; an id that is none is an error of the statement.
    Uuid,
}

/// A table of processed ids that the user made.
///
/// ```
/// use handstamp_stores::own_table::OwnTable;
///
/// let table = OwnTable::new("public.processed_messages", "message_id")?.of_consumer("consumer", "wallet-credits")?;
/// assert_eq!(
///     table.postgres_sql(),
///     r#"INSERT INTO "public"."processed_messages" ("consumer", "message_id") VALUES ($2::text, $1::text) ON CONFLICT ("consumer", "message_id") DO NOTHING"#
/// );
/// # Ok::<(), handstamp_core::StoreError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnTable {
    table: String,
    id: String,
    consumer: Option<(String, String)>,
    column: IdColumn,
}

impl OwnTable {
    /// A table, as `name` or `schema.name`, and its column for the id. It needs a unique key on that column, or on
    /// that column and the consumer's.
    ///
    /// # Errors
    /// `Config` for a name that is not made of 1 to 63 of `A-Z a-z 0-9 _`, no digit first. Upper case counts.
    pub fn new(table: &str, id: &str) -> Result<Self, StoreError> {
        let quoted: Vec<String> = table.split('.').map(quoted).collect::<Result<_, _>>()?;
        if quoted.len() > 2 {
            return Err(wrong(table));
        }
        let (table, id) = (quoted.join("."), self::quoted(id)?);
        Ok(Self { table, id, consumer: None, column: IdColumn::default() })
    }

    /// A table that several consumers share: the column for their name, and the name of this one.
    ///
    /// # Errors
    /// As [`new`](Self::new) for the column; the name may be any text.
    pub fn of_consumer(self, column: &str, name: &str) -> Result<Self, StoreError> {
        Ok(Self { consumer: Some((quoted(column)?, name.to_owned())), ..self })
    }

    /// What the id's column holds; text unless said.
    #[must_use]
    pub fn with_column(self, column: IdColumn) -> Self {
        Self { column, ..self }
    }

    /// The consumer's name, the second parameter of the statement where there is one.
    #[must_use]
    pub fn consumer(&self) -> Option<&str> {
        self.consumer.as_ref().map(|(_, name)| name.as_str())
    }

    /// The claim: `$1` is the id as text, `$2` the consumer's name. One affected row means First.
    #[must_use]
    pub fn postgres_sql(&self) -> String {
        let id = match self.column {
            IdColumn::Text => "$1::text",
            IdColumn::Uuid => "$1::text::uuid",
        };
        self.sql(id, "$2::text")
    }

    /// The same for SQLite, with `?1` and `?2`.
    #[must_use]
    pub fn sqlite_sql(&self) -> String {
        self.sql("?1", "?2")
    }

    fn sql(&self, id: &str, name: &str) -> String {
        let Self { table, id: column, .. } = self;
        let (columns, values) = match &self.consumer {
            Some((consumer, _)) => (format!("{consumer}, {column}"), format!("{name}, {id}")),
            None => (column.clone(), id.to_owned()),
        };
        format!("INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT ({columns}) DO NOTHING")
    }
}

fn quoted(name: &str) -> Result<String, StoreError> {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let fits = name.len() <= 63 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if first && fits { Ok(format!("\"{name}\"")) } else { Err(wrong(name)) }
}

fn wrong(name: &str) -> StoreError {
    let shown: String = name.chars().take(80).collect();
    let what =
        format!("{shown:?} is no name of a table or column: use 1 to 63 of A-Z a-z 0-9 _, no digit first");
    StoreError::new(StoreErrorKind::Config, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        let table = OwnTable::new("Seen", "id").unwrap();
        assert_eq!(
            table.sqlite_sql(),
            r#"INSERT INTO "Seen" ("id") VALUES (?1) ON CONFLICT ("id") DO NOTHING"#
        );
        let uuid = OwnTable::new("a.b", "c").unwrap().with_column(IdColumn::Uuid);
        assert!(uuid.postgres_sql().contains("$1::text::uuid"), "{}", uuid.postgres_sql());
        for bad in ["", "a b", "a.b.c", "a;--", "\"a\"", "1a", "é", ".a", "a.", &"x".repeat(64)] {
            assert!(OwnTable::new(bad, "id").is_err(), "{bad}");
            assert!(OwnTable::new("t", bad).is_err() || bad.contains('.'), "{bad}");
            assert!(OwnTable::new("t", "id").unwrap().of_consumer(bad, "x").is_err(), "{bad}");
        }
    }
}
