//! The keys of a version guard and of a consumer without an inbox.

use super::load::{optional, pointer, set};
use super::model::SourceSection;
use super::parse::Section;
use handstamp_core::json::Pointer;
use handstamp_core::{ConsumerOptions, VersionGuard};

/// Reads them from `[consumer]`.
pub(super) fn read(section: &Section<'_, '_>, options: &mut ConsumerOptions) {
    let field = |key: &str| -> Option<Pointer> {
        let text = optional(section, key)?;
        pointer(section, text.line, key, &text)
    };
    let (version, key) = (field("version"), field("version_key"));
    options.version = version.map(|version| VersionGuard { version, key });
    set(&mut options.inbox, section.flag("inbox"));
    set(&mut options.naturally_idempotent, section.flag("naturally_idempotent"));
    let line_of = |key: &str| section.item(key).map_or(section.line, |(_, line)| line);
    if section.has("version_key") && !section.has("version") {
        let why = "says of what `version` is one; write for example `version = \"/seq\"` too";
        section.problem(line_of("version_key"), "version_key", why);
    }
    let held_off = section.has("version") || options.naturally_idempotent;
    if !options.inbox && !held_off {
        let why = "false only with `version`, so that of each key only what is newer is applied, or with \
                   `naturally_idempotent = true`, which says that effects may run again: what is delivered twice \
                   would be applied twice";
        section.problem(line_of("inbox"), "inbox", why);
    }
}

/// A line of a file is a value and nothing else: every message would be a dead letter.
pub(super) fn refuse_without_key(top: &Section<'_, '_>, source: &SourceSection, options: &ConsumerOptions) {
    let has_none = options.version.as_ref().is_some_and(|guard| guard.key.is_none());
    if !has_none || !matches!(source, SourceSection::File(_)) {
        return;
    }
    let consumer = top.section("consumer");
    let line = consumer.and_then(|section| section.item("version")).map_or(1, |(_, line)| line);
    let why = "a line of a file has no key: write `version_key` with a JSON pointer into the line";
    top.problem(line, "consumer.version", why);
}
