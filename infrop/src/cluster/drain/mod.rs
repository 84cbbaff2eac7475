//! Emptying a Node, by evictions: budgets are honoured, and whatever holds it is named.

mod error;
mod evict;
mod pods;
mod preview;
mod selector;
mod survey;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::metadata::NodeName;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

pub use self::{
    error::Error,
    pods::{AtDeadline, Blocker, DrainRules, Fate, PodName},
    preview::{Preview, preview},
};
use self::{
    evict::{Answer, Means, ask},
    pods::waits_for,
    survey::Survey,
};
use super::access::DirectClient;

/// Between two looks at what is still there.
const INTERVAL: Duration = Duration::from_secs(1);

/// So many evictions are asked for at once: a node has up to some hundred pods, and each may wait for a budget's lock.
const PARALLEL: usize = 10;

/// The API server says ten seconds if a budget's controller is behind; more is not waited without asking again.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// An API server that restarts, or an endpoint that moves with a control plane's pods, is back by then.
const API_PATIENCE: Duration = Duration::from_mins(1);

/// For pods that are deleted in the end: ten times the usual time to end.
const DELETION_PATIENCE: Duration = Duration::from_mins(5);

/// No drain waits longer: an Instant has to hold its end, and a limit may be as good as none.
const LONGEST: Duration = Duration::from_hours(365 * 24);

const ENDING: &str = "it is ending";

const TWO_BUDGETS: &str = "more than one PodDisruptionBudget selects it, and the API never evicts such a pod";

/// What was done to empty a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// Pods that were evicted.
    pub evicted: BTreeSet<PodName>,
    /// Pods that were deleted when the time was over, whatever their budgets said.
    pub deleted: BTreeSet<PodName>,
}

/// As [`drain_heard`], for those who do not count refusals.
pub async fn drain(
    client: &DirectClient,
    node: &NodeName,
    rules: &DrainRules,
    limit: Duration,
    note: &dyn Fn(String),
) -> Result<Drained, Error> {
    drain_heard(client, node, rules, limit, note, &|| {}).await
}

/// Evicts all pods of a Node that can be elsewhere, and waits until they are gone: until none of them is in the list,
/// for a pod of the same name may be another one. `note` hears what is waited for, `refused` each refusal of a budget.
pub async fn drain_heard(
    client: &DirectClient,
    node: &NodeName,
    rules: &DrainRules,
    limit: Duration,
    note: &dyn Fn(String),
    refused: &dyn Fn(),
) -> Result<Drained, Error> {
    let mut work = Work {
        client: client.get(),
        node,
        rules,
        means: Means::Eviction,
        later: BTreeMap::new(),
        drained: Drained::default(),
        refused,
    };
    let started = Instant::now();
    let (mut deadline, mut heard) = (end(started, limit), started);
    loop {
        let found = work.round().await;
        let now = Instant::now();
        let Left { blockers, ending } = match found {
            Ok(None) => return Ok(work.drained),
            Ok(Some(left)) => {
                heard = now;
                left
            }
            Err(Error::Api(error)) if error.is_passing() && now < deadline.min(heard + API_PATIENCE) => {
                note(error.in_full());
                sleep(INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        if now >= deadline {
            if rules.at_deadline == AtDeadline::GiveUp || work.means == Means::Deletion {
                let blockers = blockers.into_iter().chain(ending).collect();
                return Err(Error::Blocked { node: node.clone(), after: now - started, blockers });
            }
            note(format!(
                "the time is over, and what is left is deleted; {}",
                waits_for(&blockers, ending.len())
            ));
            work.means = Means::Deletion;
            deadline = now + DELETION_PATIENCE;
            continue;
        }
        note(waits_for(&blockers, ending.len()));
        sleep(INTERVAL.min(deadline - now)).await;
    }
}

/// When a drain's time is over.
fn end(started: Instant, limit: Duration) -> Instant {
    started + limit.min(LONGEST)
}

/// What is on the Node after a round.
struct Left {
    /// Pods that do not go.
    blockers: Vec<Blocker>,
    /// Pods that are going.
    ending: Vec<Blocker>,
}

/// A drain under way.
struct Work<'a> {
    client: &'a kube::Client,
    node: &'a NodeName,
    rules: &'a DrainRules,
    means: Means,
    /// Pods, by their UID, that the API server does not want to be asked about before that time, and why.
    later: BTreeMap<String, (Instant, Blocker)>,
    drained: Drained,
    refused: &'a dyn Fn(),
}

impl Work<'_> {
    /// Looks at all pods and asks those to go that do not go yet. Nothing is given if there are none.
    async fn round(&mut self) -> Result<Option<Left>, Error> {
        let Survey { movable, empty_dir: _, mut ending, refused } =
            Survey::take(self.client, self.node, self.rules).await?;
        if !refused.is_empty() {
            return Err(Error::Refused { node: self.node.clone(), pods: refused });
        }
        if movable.is_empty() && ending.is_empty() {
            return Ok(None);
        }
        let now = Instant::now();
        self.later.retain(|_, (until, _)| *until > now);
        if self.means == Means::Deletion {
            self.later.clear();
        }
        let uid = |pod: &Pod| pod.uid().unwrap_or_default();
        let (postponed, due): (Vec<&Pod>, Vec<&Pod>) =
            movable.iter().partition(|pod| self.later.contains_key(&uid(pod)));
        let mut blockers: Vec<Blocker> = postponed
            .into_iter()
            .filter_map(|pod| self.later.get(&uid(pod)).map(|(_, blocker)| blocker.clone()))
            .collect();
        let mut misconfigured = Vec::new();
        for (pod, answer) in ask_all(self.client, due, self.means).await? {
            let name = PodName::of(pod);
            let blocker = |budget, why| Blocker { pod: name.clone(), budget, why };
            let (blocked, retry_after) = match answer {
                Answer::Gone => {
                    // The next list says whether it is.
                    ending.push(blocker(None, ENDING.to_owned()));
                    continue;
                }
                Answer::Accepted => {
                    ending.push(blocker(None, ENDING.to_owned()));
                    let drained = &mut self.drained;
                    let went = match self.means {
                        Means::Deletion => &mut drained.deleted,
                        Means::Eviction | Means::DryRun => &mut drained.evicted,
                    };
                    went.insert(name);
                    continue;
                }
                Answer::TooManyBudgets => {
                    misconfigured.push(blocker(None, TWO_BUDGETS.to_owned()));
                    continue;
                }
                Answer::NamespaceEnds => {
                    (blocker(None, "its namespace ends, and is to take it along".to_owned()), None)
                }
                Answer::Budget { budget, why, retry_after } => {
                    (self.refused)();
                    (blocker(budget, why), retry_after)
                }
                Answer::Busy { why, retry_after } => (blocker(None, why), retry_after),
            };
            if let Some(after) = retry_after {
                self.later.insert(uid(pod), (now + after.min(LONGEST_RETRY), blocked.clone()));
            }
            blockers.push(blocked);
        }
        if !misconfigured.is_empty() {
            return Err(Error::TooManyBudgets { node: self.node.clone(), pods: misconfigured });
        }
        Ok(Some(Left { blockers, ending }))
    }
}

/// Asks that pods go, some at once.
async fn ask_all<'p>(
    client: &kube::Client,
    pods: impl IntoIterator<Item = &'p Pod>,
    means: Means,
) -> Result<Vec<(&'p Pod, Answer)>, Error> {
    let asked =
        pods.into_iter().map(|pod| async move { ask(client, pod, means).await.map(|answer| (pod, answer)) });
    let answers = stream::iter(asked).buffer_unordered(PARALLEL).collect::<Vec<_>>().await;
    // All have been asked when the first refusal is looked at.
    Ok(answers.into_iter().collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_ever_has_an_end_all_the_same() {
        let now = Instant::now();
        assert_eq!(end(now, Duration::from_mins(10)) - now, Duration::from_mins(10));
        for limit in [Duration::MAX, Duration::MAX / 2, Duration::from_secs(u64::MAX)] {
            assert_eq!(end(now, limit) - now, LONGEST);
        }
    }
}
