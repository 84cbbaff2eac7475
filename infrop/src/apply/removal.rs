//! Taking a host away: its pods, its part in the cluster, its Node, its compute.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use common::metadata::NodeName;
use tokio::time::{Instant, sleep};

use super::{
    act::{Found, Task},
    decide::too_few_without,
    observe::control_planes,
    run::unless_stopped,
    snapshot::Role,
};
use crate::{
    bootstrap::{self, Error, host::KubeadmState, kubeadm},
    cluster::{self, Access, DrainError, DrainRules, Removing},
    random, retry,
    rollout::etcd::{self, Leaves, missed},
};

/// Pods may take their time to end, and budgets may make them wait for others.
const DRAIN_PATIENCE: Duration = Duration::from_mins(10);

/// A host that does not answer for so long is away; one that restarts its sshd or loses some packets is not.
const AWAY_PATIENCE: Duration = Duration::from_secs(30);

/// Before it is asked a second time.
const AWAY_DELAY: Duration = Duration::from_secs(1);

impl Task<'_> {
    /// Empties a node, takes it out of the cluster and gives its compute back. The compute goes last: until then a
    /// later run finds it and goes on.
    pub(super) async fn remove(&self, name: &NodeName) -> anyhow::Result<Found> {
        let host = self.host(name)?;
        let group = self.snapshot.group(host)?;
        let given_up = self.snapshot.removals.replace.contains(name);
        let report = match patiently(|| self.report(name), &*self.note).await {
            Ok(report) => Some(report),
            // Only then is it dead: one with another key, or that does not let us in, may be well.
            Err(error) if given_up && is_away(&error) => None,
            Err(error) => return Err(error),
        };
        if let Some(access) = &self.access {
            if group.role == Role::ControlPlane {
                refuse_if_missed(access, name).await?;
            }
            let how = if given_up { Removing::ForGood } else { Removing::Surplus };
            cluster::mark_removing(&access.client, name, how).await?;
            if report.is_some() {
                self.empty(access, name).await?;
            }
            if group.role == Role::ControlPlane {
                // The drain may have taken minutes.
                refuse_if_missed(access, name).await?;
            }
            // From here on it cannot be kept.
            cluster::mark_removing(&access.client, name, Removing::ForGood).await?;
        }
        if let Some(report) = report.filter(|report| report.kubeadm != KubeadmState::None) {
            kubeadm::reset(&*self.remote(host).await?, &report.kubeadm).await?;
        }
        if let Some(access) = &self.access {
            if group.role == Role::ControlPlane {
                // A reset takes the member out by itself, and ends well also if it could not.
                self.remove_etcd_member(name).await?;
            }
            cluster::delete_node(&access.client, name).await?;
        }
        self.context.provider(&group.provider)?.delete(&host.compute).await?;
        self.context.connections.forget(name);
        Ok(Found::Gone(self.known_nodes().await))
    }

    /// Empties a node. When someone asks to stop, it stays cordoned, and the next run goes on.
    async fn empty(&self, access: &Access, name: &NodeName) -> anyhow::Result<()> {
        let rules = DrainRules::default();
        let drain = async {
            let note = &*self.note;
            Ok(cluster::drain(&access.direct, name, &rules, DRAIN_PATIENCE, note).await.map(drop)?)
        };
        unless_stopped(drain, &self.stop).await
    }

    /// Takes a control plane's etcd member out, through another one that lives; none there is fine.
    async fn remove_etcd_member(&self, name: &NodeName) -> anyhow::Result<()> {
        let others = control_planes(&self.snapshot).filter(|host| host.compute.name != *name);
        let mut trouble = None;
        for other in others {
            let removed = async { bootstrap::etcd::remove_member(&*self.remote(other).await?, name).await };
            match removed.await {
                Ok(()) => return Ok(()),
                Err(error) => trouble = Some(error),
            }
        }
        let error = trouble.unwrap_or_else(|| anyhow!("no other control plane answers"));
        Err(error).context("cannot take its member out of etcd")
    }
}

/// A control plane goes only if the others can decide without it: by their Nodes, and by what etcd itself says.
async fn refuse_if_missed(access: &Access, name: &NodeName) -> anyhow::Result<()> {
    let nodes = cluster::list(&access.client).await?;
    if let Some(why) = too_few_without(&nodes, name) {
        bail!(why);
    }
    match missed(&etcd::look(&access.client).await, name, Leaves::ForGood) {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

/// What an asked host says; one that is away is asked again for a while.
async fn patiently<T>(ask: impl AsyncFn() -> anyhow::Result<T>, note: &dyn Fn(String)) -> anyhow::Result<T> {
    let deadline = Instant::now() + AWAY_PATIENCE;
    let mut failures = 0;
    loop {
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let late = matches!(error.downcast_ref(), Some(Error::TimedOut { .. }));
        if !(late || is_away(&error)) || Instant::now() >= deadline {
            return Err(error);
        }
        failures += 1;
        note(format!("{error:#}"));
        sleep(retry::delay(AWAY_DELAY, failures, random::fraction())).await;
    }
}

fn is_away(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(Error::is_away)
}

/// Whether pods hold it: it was waited for them, and whoever cares for them has to do something first.
pub(super) fn is_held(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(DrainError::Blocked { .. } | DrainError::Refused { .. } | DrainError::TooManyBudgets { .. })
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::watch;

    use super::*;
    use crate::apply::Stopped;

    fn host() -> NodeName {
        "w-1".parse().unwrap()
    }

    fn unreachable() -> Error {
        Error::Unreachable { host: host(), why: "no route".into() }
    }

    /// Asks a host that fails so often; gives what it said at last, how often it was asked, and how long that took.
    async fn asked(failures: u32, error: impl Fn() -> Error) -> (anyhow::Result<()>, u32, Duration) {
        let (asked, started) = (Cell::new(0), Instant::now());
        let ask = async || {
            asked.set(asked.get() + 1);
            if asked.get() > failures { Ok(()) } else { Err(error().into()) }
        };
        let answer = patiently(ask, &|_| {}).await;
        (answer, asked.get(), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_that_fails_does_not_make_a_host_dead() {
        let (answer, times, _) = asked(1, unreachable).await;
        assert!(answer.is_ok() && times == 2, "{answer:?} {times}");
        let late = || Error::TimedOut { host: host(), what: "look at itself".into(), after: AWAY_PATIENCE };
        let (answer, times, _) = asked(1, late).await;
        assert!(answer.is_ok() && times == 2, "{answer:?} {times}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_is_dead_if_it_is_away_for_a_while() {
        let (answer, times, took) = asked(u32::MAX, unreachable).await;
        assert!(is_away(&answer.unwrap_err()));
        assert!(took >= AWAY_PATIENCE && took < 2 * AWAY_PATIENCE && times > 3, "{took:?} {times}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_there_but_not_as_it_should_be_is_not_dead() {
        let key = || Error::HostKey { host: host(), why: "it changed".into() };
        let login = || Error::Login { host: host(), why: "no".into() };
        let script =
            || Error::Script { host: host(), what: "look".into(), code: Some(1), stderr: String::new() };
        let errors: [&dyn Fn() -> Error; 3] = [&key, &login, &script];
        for error in errors {
            let (answer, times, _) = asked(u32::MAX, error).await;
            assert!(!is_away(&answer.unwrap_err()));
            assert_eq!(times, 1);
        }
    }

    #[test]
    fn a_drain_that_is_held_is_not_tried_again_in_the_same_run() {
        let (node, pods) = (host(), Vec::new);
        for (error, held) in [
            (DrainError::Blocked { node: node.clone(), after: DRAIN_PATIENCE, blockers: pods() }, true),
            (DrainError::Refused { node: node.clone(), pods: pods() }, true),
            (DrainError::TooManyBudgets { node, pods: pods() }, true),
            (DrainError::Api(cluster::Error::Kubeconfig("no".into())), false),
        ] {
            assert_eq!(is_held(&error.into()), held);
        }
        assert!(!is_held(&unreachable().into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_when_someone_asks_to_stop() {
        let (ask, stop) = watch::channel(false);
        let forever = std::future::pending::<anyhow::Result<()>>();
        let asks = async {
            sleep(Duration::from_secs(5)).await;
            ask.send(true).unwrap();
        };
        let (ended, ()) = tokio::join!(unless_stopped(forever, &stop), asks);
        assert!(ended.unwrap_err().is::<Stopped>());
        // Nobody is left who could ask.
        let (ask, stop) = watch::channel(false);
        drop(ask);
        let work = async {
            sleep(Duration::from_secs(5)).await;
            Ok(())
        };
        assert!(unless_stopped(work, &stop).await.is_ok());
    }
}
