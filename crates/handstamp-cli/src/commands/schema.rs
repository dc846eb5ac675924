//! `schema`: the JSON Schema of the pipeline's file, for editors.

use crate::config::keys;
use crate::exit::{CliError, Exit};
use crate::output;

/// Prints the schema.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn schema() -> Result<Exit, CliError> {
    output::print_raw(text().as_bytes())?;
    Ok(Exit::Ok)
}

/// The schema as a file.
pub(crate) fn text() -> String {
    format!("{:#}\n", keys::schema())
}
