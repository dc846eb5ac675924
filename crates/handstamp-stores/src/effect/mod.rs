//! Declared SQL effects: what both databases share.
//!
//! This folder owns the statement's text ([`Statement`]), where its parameters come from ([`Bindings`]) and for which
//! messages it runs ([`Condition`], [`Routing`]). It knows no driver: a store turns each [`Value`] into its own types,
//! or refuses it.
//!
//! ```text
//!  EffectSpec ─► CompiledEffect { Statement, Bindings, ExpectRows, Condition }   once, when the pipeline is loaded
//!  Message ─► MessageView ─► Routing ─► which effects, before anything is begun
//!  Message ─► MessageView ─► Bindings::resolve ─► Vec<Value> ─► the store's own parameters
//! ```

mod binding;
mod compile;
mod route;
mod set;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod shortest;
mod statement;
mod token;
mod when;

pub use binding::{
    BindError, Bindings, Encoding, MessageView, Param, ParamSource, ParamSpec, SharedParams, SharedValues,
    Value, format_timestamp,
};
pub use compile::{CompiledEffect, EffectError, EffectSpec, ExpectRows};
pub use route::Routing;
pub use set::{
    ColumnSpec, CompiledSet, ExpectSet, Member, NUMBER, RELATION, Reads, SetColumns, SetError, SetQuery,
    SetRows, SetSpec, Step, set_groups, steps,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use shortest::shortest;
pub use statement::{Statement, StatementError, StatementKind};
pub use when::{Condition, ConditionError, ConditionFault};
