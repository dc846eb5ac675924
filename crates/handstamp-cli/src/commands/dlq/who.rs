//! Who does something, as the system calls them: for the audit.

/// The name behind the number that this process runs as; what the environment says is second, since anybody can
/// set it; then the number.
pub(super) fn user() -> String {
    of_number()
        .or_else(|| ["USER", "LOGNAME"].into_iter().find_map(|name| usable(std::env::var(name).ok()?)))
        .or_else(number)
        .unwrap_or_else(|| "unknown".into())
}

fn usable(name: String) -> Option<String> {
    (!name.trim().is_empty()).then_some(name)
}

#[cfg(unix)]
fn of_number() -> Option<String> {
    uzers::get_current_username().and_then(|name| usable(name.to_string_lossy().into_owned()))
}

#[cfg(unix)]
#[allow(clippy::unnecessary_wraps, reason = "the same shape where there is no number")]
fn number() -> Option<String> {
    Some(format!("uid {}", uzers::get_current_uid()))
}

#[cfg(not(unix))]
fn of_number() -> Option<String> {
    None
}

#[cfg(not(unix))]
fn number() -> Option<String> {
    None
}
