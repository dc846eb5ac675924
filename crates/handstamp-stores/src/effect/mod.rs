//! Declared SQL effects: what both databases share.
//!
//! This folder owns the statement's text ([`Statement`]) and where its parameters come from
//! ([`Bindings`]). It knows no driver: a store turns each [`Value`] into its own types, or refuses it.
//!
//! ```text
//!  EffectSpec ─► CompiledEffect { Statement, Bindings, ExpectRows }      once, when the pipeline is loaded
//!  Message ─► MessageView ─► Bindings::resolve ─► Vec<Value> ─► the store's own parameters
//! ```

mod binding;
mod compile;
mod shortest;
mod statement;
mod token;

pub use binding::{
    BindError, Bindings, Encoding, MessageView, Param, ParamSource, ParamSpec, SharedParams, SharedValues,
    Value, format_timestamp,
};
pub use compile::{CompiledEffect, EffectError, EffectSpec, ExpectRows};
pub(crate) use shortest::shortest;
pub use statement::{Statement, StatementError, StatementKind};
