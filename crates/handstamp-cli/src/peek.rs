//! Whether the names that a pipeline asks for are in its input: a misspelt one makes every message a dead
//! letter, and nothing else tells before the first run.
//!
//! Only a file can be looked into without taking anything from it; what a broker holds is not read.

use crate::config::{Config, SourceSection, nearest};
use crate::findings::Findings;
use handstamp_core::json::{Document, Kind, Pointer};
use handstamp_core::{DigestFields, Headers, Identity, Message, MessageId, Origin, Record};
use handstamp_stores::effect::{Condition, MessageView, ParamSource};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Most lines that are looked at.
const LINES_MAX: usize = 100;
/// Most bytes that are looked at.
const BYTES_MAX: u64 = 1 << 20;

/// Warns of each name that none of the first lines has. Says nothing where there are none yet.
pub(crate) fn look(config: &Config, findings: &mut Findings) {
    let SourceSection::File(section) = &config.source else { return };
    let path = config.resolve(&section.path.value);
    // That it cannot be read is found elsewhere.
    let Ok(bytes) = beginning(&path) else { return };
    let objects = objects(&bytes);
    let file = path.display();
    for Wanted { what, pointer, of, then, todo } in wanted(config) {
        let objects: Vec<&Document<'_>> = objects
            .iter()
            .filter(|object| of.is_none_or(|condition| holds(condition, object, &path)))
            .collect();
        // A key that is there twice is there.
        if objects.is_empty() || objects.iter().any(|object| !matches!(object.at(&pointer), Ok(None))) {
            continue;
        }
        let those = if of.is_some() { " it runs for" } else { "" };
        let looked_at = objects.len();
        let what =
            format!("{what} is in none of the first lines of {file}{those} ({looked_at} looked at): {then}");
        let todo = match nearest_name(&objects, &pointer) {
            Some(near) => format!("did you mean {near}? Otherwise {todo}"),
            None => format!("correct the name, or {todo}"),
        };
        findings.warn(what, todo);
    }
}

/// A name that messages must have.
struct Wanted<'c> {
    /// How a person calls it.
    what: String,
    pointer: Pointer,
    /// Only messages that fulfil this must.
    of: Option<&'c Condition>,
    /// What becomes of a message without it.
    then: &'static str,
    /// What to do where it is right as it is.
    todo: &'static str,
}

const DEAD: &str = "each would become a dead letter";

fn wanted(config: &Config) -> Vec<Wanted<'_>> {
    let of_event = ["specversion", "source", "id"].map(Pointer::member);
    let ids = match &config.identity.identity {
        Identity::Field(pointer) => std::slice::from_ref(pointer),
        Identity::Fields(pointers) => pointers.as_slice(),
        Identity::CloudEvents => &of_event,
        Identity::Header(_) | Identity::Key => &[],
    };
    let of_id = |pointer: &Pointer| {
        let todo = "name the field that has the producer's id";
        Wanted { what: format!("identity: {pointer}"), pointer: pointer.clone(), of: None, then: DEAD, todo }
    };
    let of_digest = |pointer: &Pointer| Wanted {
        what: format!("identity.digest: {pointer}"),
        pointer: pointer.clone(),
        of: None,
        then: "it says nothing where an id comes again",
        todo: "leave it out",
    };
    let digest = config.identity.digest.as_ref().map_or(&[][..], DigestFields::pointers);
    let mut wanted: Vec<_> = ids.iter().map(of_id).chain(digest.iter().map(of_digest)).collect();
    for (index, effect) in config.effects.iter().enumerate() {
        let place = format!("effect {} (line {})", index + 1, effect.line);
        let condition = effect.compiled.when.as_ref();
        for pointer in condition.into_iter().flat_map(Condition::needed) {
            let todo = "ask whether it `exists` in front of it";
            let what = format!("{place}: when: the body's {pointer}");
            wanted.push(Wanted { what, pointer: pointer.clone(), of: None, then: DEAD, todo });
        }
        for param in effect.compiled.bindings.params() {
            let ParamSource::Body(pointer) = &param.source else { continue };
            if !param.optional {
                let what = format!("{place}: :{} ({})", param.name, param.source);
                let todo = "list it in `optional`";
                wanted.push(Wanted { what, pointer: pointer.clone(), of: condition, then: DEAD, todo });
            }
        }
    }
    wanted
}

/// Whether a line fulfils a condition; one that gives no answer does not.
fn holds(condition: &Condition, line: &Document<'_>, path: &Path) -> bool {
    let record = Record {
        key: None,
        value: Some(line.root().raw().to_owned().into()),
        headers: Headers::default(),
        origin: Origin { topic: path.to_string_lossy().into(), partition: 0, offset: 0, line: None },
        timestamp: None,
    };
    let Ok(id) = MessageId::try_from("-") else { return false };
    let message = Message::new(id, record);
    condition.holds(&MessageView::new(&message)).unwrap_or(false)
}

/// The first bytes of a file; nothing of a stream, from which they would be gone.
fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path.metadata()?.is_file() {
        File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// The lines that are JSON objects; others become dead letters whatever the names are.
fn objects(bytes: &[u8]) -> Vec<Document<'_>> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').take(LINES_MAX);
    let documents = lines.filter_map(|line| Document::parse(line).ok());
    documents.filter(|document| document.root().kind() == Kind::Object).collect()
}

/// The name beside the one that is not there which is spelled most alike.
fn nearest_name(objects: &[&Document<'_>], pointer: &Pointer) -> Option<Pointer> {
    let (parent, _) = pointer.as_str().rsplit_once('/')?;
    let token = pointer.tokens().last()?;
    let mut names = BTreeSet::new();
    for object in objects {
        let Ok(value) = serde_json::from_str::<Value>(object.root().raw()) else { continue };
        if let Some(Value::Object(beside)) = value.pointer(parent) {
            names.extend(beside.keys().cloned());
        }
    }
    let near = nearest(token, names.iter().map(String::as_str))?;
    Pointer::parse(&format!("{parent}{}", Pointer::member(near))).ok()
}
