//! Acting: one step at a time, each in the journal before it begins, each with a permit that was read just before.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use common::{
    metadata::InitializedMark,
    plan::Plan,
    software::{SoftwareName, SoftwareVersion},
    state::{Phase, Reason},
};
use jiff::Timestamp;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{Engine, SECOND_LOOK};
use crate::{
    decide::{Decision, wanted},
    endpoint::{self, Presence},
    failure::Failure,
    inhibitor::Inhibitor,
    journal::{Failed, Origin, Step},
    node::{Chain, View, random},
    notify,
    provider::{IronicNode, MarkFile, Provider},
    reboot, software,
    software::Task,
    verify::verify,
};

/// How long a host may take to go down before the restart counts as failed.
const REBOOT_PATIENCE: Duration = Duration::from_mins(10);

impl Engine {
    /// Begins a plan. From here on the Node says `ready=false`; its answer is the permit that counts.
    pub(super) async fn accept(&mut self, plan: Plan, origin: Origin, permitted: bool) {
        self.journal.accept(plan, origin, permitted, Timestamp::now());
        self.unsaved = true;
        self.set_state(Phase::Changing, Reason::ChangingSoftware, "beginning".to_owned());
        self.publish().await;
        self.save_if_needed();
        self.known = false;
    }

    /// Says what comes next, and whether it still may: the answer to the write is read after the last step.
    pub(super) async fn confirm(
        &mut self,
        decision: &Decision,
        phase: Phase,
        reason: Reason,
        message: String,
    ) -> bool {
        self.set_state(phase, reason, message);
        if !self.publish().await && matches!(&*self.view.borrow(), View::Seen { .. }) {
            // Nothing to write, so nothing was read.
            if let Err(error) = self.node.read().await {
                tracing::warn!("the Node cannot be read: {}", Chain(&error));
                // What was read before is no permit: it was read before the last step.
                if error.is_refusal() {
                    self.refused = Some(error.to_string());
                }
            }
        }
        if !self.fresh && !self.look().await {
            return false;
        }
        self.decide().await == *decision
    }

    pub(super) async fn change(&mut self, name: &SoftwareName, version: &SoftwareVersion) {
        let Some(one) = software::find(name) else { return };
        let Some(plan) = self.journal.active.as_ref().map(|active| active.plan.clone()) else { return };
        match one.can_begin(&self.task(&plan), version) {
            Ok(()) => {}
            Err(failure) if failure.reason == Reason::ApiUnreachable => return self.put_off(&failure),
            Err(failure) => return self.fail(&failure),
        }
        if self.inhibitor.is_none() {
            self.inhibitor = Some(Inhibitor::take("software is being changed").await);
        }
        if !self.begin(Step::Change(name.clone())) {
            return;
        }
        if one.disruption().needs_drain() {
            self.leave_endpoint().await;
        }
        let started = Instant::now();
        let result = to_the_end(one.ensure(&self.task(&plan), version), self.stop.clone()).await;
        let took = started.elapsed();
        self.shared.metrics.observe_change(name, took);
        if let Err(failure) = result {
            return self.fail(&failure);
        }
        if !self.look().await {
            // The step stays open in the journal until it can be seen how it went.
            return;
        }
        let reached = wanted(&plan, &self.seen).iter().all(|(other, wanted)| {
            other != name || self.seen.observed(name.as_str()).is_some_and(|seen| !seen.needs_change(wanted))
        });
        if !reached {
            let found = self.seen.observed(name.as_str()).and_then(|seen| seen.after_reboot.clone());
            let found = found.map_or_else(|| "none".to_owned(), |version| version.to_string());
            let message =
                format!("{name} was brought to {version} without an error, and the host has {found}");
            return self.fail(&Failure::new(Reason::VersionUnchanged, message));
        }
        tracing::info!(software = %name, version = %version, seconds = took.as_secs_f64(), "{name} is at {version}");
        self.journal.end_step();
        self.unsaved = true;
        self.save_if_needed();
    }

    fn task<'a>(&'a self, plan: &'a Plan) -> Task<'a> {
        Task {
            host: &self.host,
            contents: &self.settings.contents,
            plan,
            facts: &self.seen.facts,
            kubeadm: &self.settings.config.kubeadm,
            cluster: self.cluster.as_ref(),
        }
    }

    pub(super) async fn reboot(&mut self) {
        if let Some(inhibitor) = self.inhibitor.take() {
            inhibitor.release().await;
        }
        match reboot::inhibited(&self.host).await {
            Ok(None) => {}
            Ok(Some(who)) => {
                self.set_state(
                    Phase::Waiting,
                    Reason::RebootInhibited,
                    format!("a restart is due; kept from it by {who}"),
                );
                self.publish().await;
                let until = Timestamp::now().checked_add(SECOND_LOOK).ok();
                return self.wait(until).await;
            }
            Err(failure) => return self.fail(&failure),
        }
        let message = "restarting the host".to_owned();
        let confirmed = self.confirm(&Decision::Reboot, Phase::Rebooting, Reason::RebootDue, message).await;
        if !confirmed || !self.begin(Step::Reboot) {
            return;
        }
        self.leave_endpoint().await;
        if let Err(failure) = reboot::order(&self.host).await {
            return self.fail(&failure);
        }
        // The end of this process is part of the restart.
        let stopped = tokio::time::timeout(REBOOT_PATIENCE, self.stop.wait_for(|stop| *stop)).await.is_ok();
        if !stopped {
            let message = format!("the host did not go down within {} s", REBOOT_PATIENCE.as_secs());
            self.fail(&Failure::new(Reason::RebootFailed, message));
        }
    }

    /// Lets nobody come to this host's API server, which is about to stop, and those who are there go; once per plan.
    async fn leave_endpoint(&mut self) {
        self.returning = JoinSet::new();
        let Some(address) = self.settings.config.endpoint_address else { return };
        if self.seen.facts.control_plane && *self.shared.presence.borrow() != Presence::Away {
            let leaves = endpoint::leave(&self.host, address, &self.shared.presence);
            to_the_end(leaves, self.stop.clone()).await;
        }
    }

    /// Comes back when this host's API server can be led to again; not before: what rests between two steps is about to
    /// stop it once more.
    pub(super) fn return_to_endpoint(&mut self) {
        if *self.shared.presence.borrow() == Presence::Here || !self.returning.is_empty() {
            return;
        }
        let settles = self.settle_endpoint();
        let shared = Arc::clone(&self.shared);
        self.returning.spawn(async move {
            if let Err(failure) = settles.await {
                // Load balancers see that for themselves; it can be led to as soon as they find it ready.
                tracing::warn!("{failure}");
            }
            shared.presence.send_replace(Presence::Here);
        });
    }

    /// Waits until this host's API server can be led to again, if it was left, or may have been by an agent before this one.
    fn settle_endpoint(&self) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let left = *self.shared.presence.borrow() != Presence::Here;
        let address = self.settings.config.endpoint_address.filter(|_| {
            let facts = &self.seen.facts;
            left && facts.joined && facts.control_plane
        });
        let server = address.map(|address| {
            software::api_server_port(&self.host).map(|port| SocketAddr::new(address.ip(), port))
        });
        let node = Arc::clone(&self.node);
        async move {
            let Some(server) = server.transpose()? else { return Ok(()) };
            let is_ready = || {
                let node = Arc::clone(&node);
                async move { node.is_ready(server).await.map_err(|error| Chain(&error).to_string()) }
            };
            endpoint::settle(is_ready).await
        }
    }

    /// Writes a step to the journal before it begins; without that it does not begin.
    pub(super) fn begin(&mut self, step: Step) -> bool {
        self.journal.begin(step, &self.seen.facts.boot);
        self.fresh = false;
        match self.save() {
            Ok(()) => true,
            Err(failure) => {
                self.record(&failure);
                false
            }
        }
    }

    /// Looks whether everything works; then the plan is reached.
    pub(super) async fn finish(&mut self, origin: Origin) {
        self.set_state(Phase::Verifying, Reason::CheckingServices, "checking services".to_owned());
        self.publish().await;
        if !self.look().await {
            return;
        }
        let checked = async {
            verify(&self.host, &self.seen).await?;
            self.settle_endpoint().await?;
            self.shared.presence.send_replace(Presence::Here);
            Ok(())
        };
        let checked = to_the_end(checked, self.stop.clone()).await;
        let result = match checked {
            Ok(()) if origin == Origin::Metadata => self.mark_initialized().await,
            other => other,
        };
        match result {
            Ok(()) => {}
            Err(failure) if failure.reason == Reason::ProviderUnavailable => return self.put_off(&failure),
            Err(failure) => return self.fail(&failure),
        }
        if self.decide().await == (Decision::Finish { origin }) {
            self.journal.finish(Timestamp::now());
            self.unsaved = true;
            self.save_if_needed();
            tracing::info!(plan = ?self.journal.observed.as_ref().map(ToString::to_string), "the plan is reached");
        }
    }

    pub(super) async fn mark_initialized(&mut self) -> Result<(), Failure> {
        let (Some(metadata), Some(active)) = (&self.settings.metadata, &self.journal.active) else {
            return Ok(());
        };
        let mark = InitializedMark {
            node: metadata.node.clone(),
            plan: active.plan.id(),
            at: Timestamp::now(),
            boot_id: self.seen.facts.boot.to_string(),
            agent_version: self.state.agent_version.clone(),
        };
        if let Some(ironic) = &metadata.ironic {
            IronicNode { ironic }.mark_initialized(&mark).await?;
        }
        // Last, so that whoever reads the file knows that all of it was done.
        MarkFile { host: &self.host }.mark_initialized(&mark).await
    }

    /// What depends on someone who is away is done later, which is no attempt.
    fn put_off(&mut self, failure: &Failure) {
        tracing::warn!(reason = %failure.reason, "put off: {failure}");
        let failed = Failed { reason: failure.reason, message: failure.summary() };
        self.journal.postpone(failed, Timestamp::now(), self.limits(), random());
        self.unsaved = true;
        self.save_if_needed();
    }

    pub(super) fn fail(&mut self, failure: &Failure) {
        self.record(failure);
        self.known = false;
    }

    pub(super) fn record(&mut self, failure: &Failure) {
        let reason = failure.reason;
        let attempt = self.journal.active.as_ref().map_or(0, |active| active.attempt);
        tracing::error!(reason = %reason, attempt, "the attempt failed: {failure}");
        self.shared.metrics.count_failure(reason);
        let message = failure.summary();
        let limits = self.limits();
        self.journal.fail(Failed { reason, message }, Timestamp::now(), limits, random());
        self.fresh = false;
        self.unsaved = true;
        self.save_if_needed();
    }
}

/// Runs a step to its end, also if the agent is told to stop: half a step is what crashes leave.
async fn to_the_end<T>(step: impl Future<Output = T>, mut stop: watch::Receiver<bool>) -> T {
    let mut step = std::pin::pin!(step);
    tokio::select! {
        result = &mut step => return result,
        // Without a sender nobody can ask for the end.
        _ = stop.wait_for(|stop| *stop) => {}
    }
    loop {
        notify::extend();
        tokio::select! {
            result = &mut step => return result,
            () = sleep(notify::EXTENSION / 2) => {}
        }
    }
}
