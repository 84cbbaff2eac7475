//! `infrop apply`: observe, decide, act, until there is nothing left to do.

mod act;
mod context;
mod decide;
mod foresee;
mod observe;
mod progress;
mod removal;
mod rollout;
mod run;
mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
mod write;

pub use self::{
    context::Context,
    decide::{Action, Decision, decide, leaving, natural, natural_parts},
    foresee::foresee,
    observe::{aim, connect, console, look, observe, observe_in, pools, sorted},
    progress::{Event, Of, Progress, Stage, UnderWay},
    rollout::{blocked as rollout_reasons, plan as plan_rollout},
    run::{End, Options, Outcome, Stop, Stopped, run, unless_stopped},
    snapshot::{Agreed, Cluster, ClusterView, Group, Host, Removals, Role, Snapshot},
    write::Writer,
};
