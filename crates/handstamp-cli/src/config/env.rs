//! `${VAR}` and `${VAR:-default}` inside TOML strings (pure: the environment is passed in).
//!
//! `$${` stands for a literal `${`. A lone `$` is itself.

use std::env::VarError;

/// Looks a variable up.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

/// A string after its variables were put in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expanded {
    /// The text to use.
    pub(crate) value: String,
    /// Values that came from the environment, for redaction.
    pub(crate) from_env: Vec<String>,
    /// Whether a variable (or its default) was put in.
    pub(crate) changed: bool,
}

/// What is wrong with a `${…}`; never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpandError {
    /// The variable is not set and has no default.
    #[error("the environment variable {0} is not set; set it, or give a default: ${{{0}:-…}}")]
    Missing(String),
    /// The variable's value is no text.
    #[error("the environment variable {0} is not UTF-8 text; set it to text")]
    NotText(String),
    /// The default holds another variable.
    #[error("the default of ${{{0}:-…}} holds another variable, which is not put in; write plain text there")]
    Nested(String),
    /// The brace is not closed.
    #[error("`${{` is not closed; write `$${{` for a literal `${{`")]
    Unclosed,
    /// The name is empty or holds other characters.
    #[error("`${{…}}` needs a variable's name of letters, digits and `_`")]
    BadName,
}

/// Puts variables in.
pub(crate) fn expand(text: &str, lookup: Lookup<'_>) -> Result<Expanded, ExpandError> {
    let mut out = Expanded { value: String::with_capacity(text.len()), from_env: Vec::new(), changed: false };
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.value.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$${") {
            out.value.push_str("${");
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let end = after.find('}').ok_or(ExpandError::Unclosed)?;
            variable(&after[..end], lookup, &mut out)?;
            rest = &after[end + 1..];
        } else {
            out.value.push('$');
            rest = &rest[1..];
        }
    }
    out.value.push_str(rest);
    Ok(out)
}

fn variable(inside: &str, lookup: Lookup<'_>, out: &mut Expanded) -> Result<(), ExpandError> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(fits) {
        return Err(ExpandError::BadName);
    }
    if default.is_some_and(|default| default.contains("${")) {
        return Err(ExpandError::Nested(name.to_owned()));
    }
    out.changed = true;
    let found = match lookup(name) {
        Ok(value) => Some(value),
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(_)) => return Err(ExpandError::NotText(name.to_owned())),
    };
    // As in a shell, `:-` also replaces an empty value.
    match found.filter(|value| default.is_none() || !value.is_empty()) {
        Some(value) => {
            out.value.push_str(&value);
            out.from_env.push(value);
        }
        None => out.value.push_str(default.ok_or_else(|| ExpandError::Missing(name.to_owned()))?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, ExpandError> {
        let lookup = |name: &str| match name {
            "A" => Ok("1".to_owned()),
            "EMPTY" => Ok(String::new()),
            "BYTES" => Err(VarError::NotUnicode("canary".into())),
            _ => Err(VarError::NotPresent),
        };
        expand(text, &lookup).map(|done| done.value)
    }

    #[test]
    fn variables_defaults_and_escapes() {
        for (text, value) in [
            ("plain $5 $", "plain $5 $"),
            ("${A}x${A}", "1x1"),
            ("${B:-two}", "two"),
            ("${B:-}", ""),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY}", ""),
            ("$${A} $$5", "${A} $$5"),
            ("${A:-x}", "1"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(value), "{text}");
        }
    }

    #[test]
    fn mistakes_name_the_variable_and_never_a_value() {
        assert_eq!(expanded("${B}"), Err(ExpandError::Missing("B".into())));
        assert_eq!(expanded("${A"), Err(ExpandError::Unclosed));
        assert_eq!(expanded("${}"), Err(ExpandError::BadName));
        assert_eq!(expanded("${A B}"), Err(ExpandError::BadName));
        assert_eq!(expanded("${B:-${A}}"), Err(ExpandError::Nested("B".into())));
        assert_eq!(expanded("${A:-x${B:-y}}"), Err(ExpandError::Nested("A".into())));
        for text in ["${BYTES}", "${BYTES:-x}"] {
            let error = expanded(text).unwrap_err();
            assert_eq!(error, ExpandError::NotText("BYTES".into()));
            assert!(error.to_string().contains("BYTES is not UTF-8"), "{error}");
        }
        assert!(ExpandError::Missing("B".into()).to_string().contains("${B:-…}"));
    }

    #[test]
    fn a_value_is_not_expanded_again() {
        let lookup = |_: &str| Ok("${A}".to_owned());
        assert_eq!(expand("${X}", &lookup).map(|done| done.value), Ok("${A}".to_owned()));
    }
}
