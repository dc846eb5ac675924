//! Whether the names that a pipeline asks for are in its input: a misspelt one makes every message a dead
//! letter, and nothing else tells before the first run.
//!
//! Only a file can be looked into without taking anything from it; what a broker holds is not read.

use crate::config::{Config, SourceSection, nearest};
use crate::findings::Findings;
use handstamp_core::Identity;
use handstamp_core::json::{Document, Kind, Pointer};
use handstamp_stores::effect::ParamSource;
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
    if objects.is_empty() {
        return;
    }
    let (looked_at, file) = (objects.len(), path.display());
    for (what, pointer, todo) in wanted(config) {
        // A key that is there twice is there.
        if objects.iter().any(|object| !matches!(object.at(pointer), Ok(None))) {
            continue;
        }
        let what = format!(
            "{what} is in none of the first lines of {file} ({looked_at} looked at): each would become a dead letter"
        );
        let todo = match nearest_name(&objects, pointer) {
            Some(near) => format!("did you mean {near}? Otherwise {todo}"),
            None => format!("correct the name, or {todo}"),
        };
        findings.warn(what, todo);
    }
}

/// What every message must have, how a person calls it, and what to do where it is right as it is.
fn wanted(config: &Config) -> Vec<(String, &Pointer, &'static str)> {
    let ids = match &config.identity.identity {
        Identity::Field(pointer) => std::slice::from_ref(pointer),
        Identity::Fields(pointers) => pointers.as_slice(),
        Identity::Header(_) | Identity::Key | Identity::CloudEvents => &[],
    };
    let id_todo = "name the field that has the producer's id";
    let mut wanted: Vec<_> =
        ids.iter().map(|pointer| (format!("identity: {pointer}"), pointer, id_todo)).collect();
    for (index, effect) in config.effects.iter().enumerate() {
        for param in effect.compiled.bindings.params() {
            let ParamSource::Body(pointer) = &param.source else { continue };
            if !param.optional {
                let what = format!("effect {} (line {}): :{}", index + 1, effect.line, param.name);
                let todo = "list it in `optional`";
                wanted.push((format!("{what} ({})", param.source), pointer, todo));
            }
        }
    }
    wanted
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
fn nearest_name(objects: &[Document<'_>], pointer: &Pointer) -> Option<Pointer> {
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
