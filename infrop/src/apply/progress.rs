//! What people and programs see of a run while it goes on.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use common::metadata::NodeName;

use super::decide::Action;

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event {
    /// The host, if it is about one.
    pub host: Option<NodeName>,
    /// What.
    pub what: String,
    /// How far it is.
    pub stage: Stage,
}

/// How far something is.
#[derive(Debug, Clone)]
pub enum Stage {
    /// It begins.
    Started,
    /// Why it takes long.
    Note(String),
    /// It is done.
    Done(Duration),
    /// It failed.
    Failed {
        /// Why.
        why: String,
        /// Whether it is not tried again in this run.
        last: bool,
    },
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Steps of an apply.
    Steps,
    /// Nodes of a rollout.
    Nodes,
}

impl Event {
    /// Of an action.
    pub fn new(action: &Action, stage: Stage) -> Self {
        Self { host: action.host().cloned(), what: action.to_string(), stage }
    }
}

/// Who shows it.
pub trait Progress: std::fmt::Debug {
    /// Something happened.
    fn event(&self, event: &Event);

    /// Who waits now, and for what.
    fn waiting(&self, reasons: &BTreeMap<NodeName, String>);

    /// How much is done: of the steps of an apply, or the nodes of a rollout.
    fn reached(&self, _done: usize, _all: usize, _of: Of) {}
}

/// What is under way, and why it takes long as far as it said: for a run that ends before it does.
#[derive(Debug, Clone)]
pub struct UnderWay<A>(Rc<RefCell<BTreeMap<A, String>>>);

impl<A> Default for UnderWay<A> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

impl<A: Ord + Clone> UnderWay<A> {
    /// It begins, or says why it takes long.
    pub fn say(&self, action: &A, why: String) {
        self.0.borrow_mut().insert(action.clone(), why);
    }

    /// It has ended.
    pub fn end(&self, action: &A) {
        self.0.borrow_mut().remove(action);
    }

    /// All that goes on, each with its last word, which may be empty.
    pub fn list(&self) -> BTreeMap<A, String> {
        self.0.borrow().clone()
    }
}
