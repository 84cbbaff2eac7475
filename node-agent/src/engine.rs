//! The loop: observe, decide, act, one action at a time; and whatever it learns goes to the journal first and to
//! the Node as soon as that can be reached.

use std::{path::PathBuf, sync::Arc, time::Duration};

use common::{
    KubernetesVersion,
    annotations::{self, Request},
    metadata::InitializedMark,
    plan::Plan,
    software::{SoftwareName, SoftwareVersion},
    state::{Phase, Reason, State},
};
use jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    config::Settings,
    decide::{Asked, Decision, Rest, Snapshot, Standing, decide, wanted},
    failure::Failure,
    host::Host,
    inhibitor::Inhibitor,
    journal::{Failed, Journal, Limits, Origin, Step},
    node::{Chain, OwnNode, View, random},
    notify, observe,
    observe::{BootId, HostState},
    provider::{IronicNode, MarkFile, Provider},
    reboot, report, software,
    software::Task,
    status::Shared,
    verify::verify,
};

/// How long a host may take to go down before the restart counts as failed.
const REBOOT_PATIENCE: Duration = Duration::from_mins(10);

/// Until the next look at something that is not ours to change: a foreign inhibitor, a refusing API server.
const SECOND_LOOK: SignedDuration = SignedDuration::from_secs(15);

/// The file of the journal.
pub const JOURNAL: &str = "/var/lib/node-agent/journal.json";

/// What an agent works with.
#[derive(Debug)]
pub struct Wiring {
    /// Where its settings are.
    pub directory: PathBuf,
    /// Its settings.
    pub settings: Settings,
    /// The host.
    pub host: Host,
    /// The host's Node.
    pub node: Arc<OwnNode>,
    /// What survived.
    pub journal: Journal,
    /// What it shows.
    pub shared: Arc<Shared>,
    /// Tells when files of interest changed.
    pub files: watch::Receiver<()>,
    /// Tells when to end.
    pub stop: watch::Receiver<bool>,
}

/// The agent at work.
#[derive(Debug)]
pub struct Engine {
    directory: PathBuf,
    settings: Settings,
    host: Host,
    node: Arc<OwnNode>,
    view: watch::Receiver<View>,
    files: watch::Receiver<()>,
    stop: watch::Receiver<bool>,
    shared: Arc<Shared>,
    journal: Journal,
    /// Whether the journal in memory is ahead of the one on the disk.
    unsaved: bool,
    seen: HostState,
    /// Whether the host was looked at since something other than the Node called for it.
    known: bool,
    /// Whether nothing could have changed since the host was looked at.
    fresh: bool,
    cluster: Option<KubernetesVersion>,
    /// What the API server said when it refused a write.
    refused: Option<String>,
    state: State,
    inhibitor: Option<Inhibitor>,
}

impl Engine {
    /// An agent that goes on where its journal says.
    pub fn new(wiring: Wiring) -> Self {
        let Wiring { directory, settings, host, node, journal, shared, files, stop } = wiring;
        let state = State {
            phase: Phase::Waiting,
            reason: Reason::NoPlan,
            message: "starting".to_owned(),
            since: Timestamp::now(),
            attempt: 0,
            boot_id: String::new(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Self {
            directory,
            settings,
            host,
            view: node.view(),
            node,
            files,
            stop,
            shared,
            journal,
            unsaved: false,
            seen: HostState::default(),
            known: false,
            fresh: false,
            cluster: None,
            refused: None,
            state,
            inhibitor: None,
        }
    }

    /// Works until it is told to stop.
    pub async fn run(mut self, boot: &BootId) {
        self.recover(boot);
        notify::ready();
        while !*self.stop.borrow() {
            self.pass().await;
        }
    }

    /// Makes of a step that never ended what it is: a reboot, or an attempt that was cut off.
    fn recover(&mut self, boot: &BootId) {
        let before = self.journal.clone();
        self.journal.recover(boot, Timestamp::now(), self.limits());
        self.unsaved = self.journal != before;
        let failure = |journal: &Journal| match (&journal.active, &journal.quarantine) {
            (Some(active), _) => active.failure.clone(),
            (None, Some(quarantine)) => Some(quarantine.failure.clone()),
            (None, None) => None,
        };
        if let Some(Failed { reason, message }) =
            failure(&self.journal).filter(|new| Some(new) != failure(&before).as_ref())
        {
            tracing::warn!(reason = %reason, "the last attempt was cut off: {message}");
            self.shared.metrics.count_failure(reason);
        }
    }

    /// One decision and its action.
    async fn pass(&mut self) {
        if !self.known && !self.look().await {
            return;
        }
        let mut decision = self.decide().await;
        if !self.fresh && self.is_verdict(&decision) {
            // What was seen before the plan came says nothing about it.
            if !self.look().await {
                return;
            }
            decision = self.decide().await;
        }
        if !matches!(decision, Decision::Rest(_)) {
            let plan = self.asked_plan().map(|plan| plan.id().to_string());
            tracing::info!(plan, "next: {decision}");
        }
        match decision {
            Decision::Rest(rest) => self.rest(rest).await,
            Decision::Accept { plan, origin } => self.accept(plan, origin).await,
            Decision::Change { ref software, ref version } => {
                let message = format!("bringing {software} to {version}");
                if self.confirm(&decision, Phase::Changing, Reason::ChangingSoftware, message).await {
                    self.change(software, version).await;
                }
            }
            Decision::Reboot => {
                let message = "restarting the host".to_owned();
                if self.confirm(&decision, Phase::Rebooting, Reason::RebootDue, message).await {
                    self.reboot().await;
                }
            }
            Decision::Finish { origin } => self.finish(origin).await,
            Decision::GiveUp(failed) => {
                self.shared.metrics.count_failure(failed.reason);
                tracing::error!(reason = %failed.reason, "the plan is given up: {}", failed.message);
                self.journal.give_up(failed, Timestamp::now());
                self.unsaved = true;
            }
        }
    }

    /// Whether a decision says of a plan for the first time how the host stands to it.
    fn is_verdict(&self, decision: &Decision) -> bool {
        match decision {
            Decision::Rest(Rest { standing: Standing::At(plan), .. }) => {
                !self.journal.ready || self.journal.observed.as_ref() != Some(plan)
            }
            _ => false,
        }
    }

    async fn decide(&mut self) -> Decision {
        let asked = self.asked();
        if self.journal.hear(&asked) {
            // At once: if this process ends and the API server goes away, the disk is all that knows it.
            self.unsaved = true;
            self.save_if_needed();
        }
        if let Some(message) = &self.refused
            && self.seen.facts.joined
        {
            return Decision::Rest(Rest {
                phase: Phase::Waiting,
                reason: Reason::ApiRefused,
                message: message.clone(),
                until: Timestamp::now().checked_add(SECOND_LOOK).ok(),
                standing: Standing::Keep,
            });
        }
        self.ask_cluster(&asked).await;
        decide(&Snapshot {
            now: Timestamp::now(),
            asked: &asked,
            host: &self.seen,
            journal: &self.journal,
            cluster: self.cluster.as_ref(),
            api_patience: SignedDuration::from_secs(self.settings.config.api_patience_seconds.into()),
        })
    }

    /// What is asked for, and by whom.
    fn asked(&self) -> Asked {
        match &*self.view.borrow() {
            View::NoCredential => {
                let plan = self.settings.metadata.as_ref().and_then(|metadata| metadata.plan().ok());
                plan.map_or(Asked::Nothing, Asked::Metadata)
            }
            View::Silent { since } => Asked::Silence { since: *since },
            View::Seen { annotations, .. } => Asked::Node(annotations::read_request(annotations)),
        }
    }

    fn asked_plan(&self) -> Option<Plan> {
        match self.asked() {
            Asked::Metadata(plan) | Asked::Node(Ok(Request { plan: Some(plan), .. })) => Some(plan),
            Asked::Silence { .. } => self.journal.active.as_ref().map(|active| active.plan.clone()),
            Asked::Nothing | Asked::Node(_) => None,
        }
    }

    /// Finds out the cluster's version if a decision depends on it; at steady state none does.
    async fn ask_cluster(&mut self, asked: &Asked) {
        self.cluster = None;
        let Asked::Node(Ok(Request { plan: Some(plan), .. })) = asked else { return };
        let Some(target) = software::kubernetes_of(plan) else { return };
        let is_there = |name: &str| self.seen.kubernetes_version(name).as_ref() == Some(&target);
        if is_there(software::KUBERNETES) && is_there("kubelet") {
            return;
        }
        match self.node.cluster_version().await {
            Ok(version) => self.cluster = Some(version),
            Err(error) => tracing::warn!("kubeadm-config cannot be read: {}", Chain(&error)),
        }
    }

    /// Looks at the host; false if that failed, after a pause.
    async fn look(&mut self) -> bool {
        let plan = self.asked_plan();
        let kubeconfig = self.settings.config.kubeconfig.clone();
        match observe::observe(&self.host, &self.settings.contents, &kubeconfig, plan.as_ref()).await {
            Ok(seen) => {
                self.seen = seen;
                self.known = true;
                self.fresh = true;
                true
            }
            Err(failure) => {
                tracing::error!(reason = %failure.reason, "the host cannot be observed: {failure}");
                self.shared.metrics.count_failure(failure.reason);
                self.known = false;
                self.set_state(Phase::Waiting, Reason::ObservationFailed, failure.summary());
                self.publish().await;
                self.wait(Timestamp::now().checked_add(SECOND_LOOK).ok()).await;
                false
            }
        }
    }

    /// Rests until something happens.
    async fn rest(&mut self, rest: Rest) {
        let Rest { phase, reason, message, until, standing } = rest;
        if let Some(inhibitor) = self.inhibitor.take() {
            inhibitor.release().await;
        }
        self.stand(standing);
        self.save_if_needed();
        self.set_state(phase, reason, message);
        self.refused = None;
        self.publish().await;
        self.wait(until).await;
    }

    fn stand(&mut self, standing: Standing) {
        let before = self.journal.clone();
        self.journal.stand(standing);
        self.unsaved |= self.journal != before;
    }

    /// Begins a plan. From here on the Node says `ready=false`; its answer is the permit that counts.
    async fn accept(&mut self, plan: Plan, origin: Origin) {
        self.journal.accept(plan, origin, Timestamp::now());
        self.unsaved = true;
        self.set_state(Phase::Changing, Reason::ChangingSoftware, "beginning".to_owned());
        self.publish().await;
        self.save_if_needed();
        self.known = false;
    }

    /// Says what comes next, and whether it still may: the answer to the write is read after the last step.
    async fn confirm(&mut self, decision: &Decision, phase: Phase, reason: Reason, message: String) -> bool {
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

    async fn change(&mut self, name: &SoftwareName, version: &SoftwareVersion) {
        let Some(one) = software::find(name) else { return };
        let Some(plan) = self.journal.active.as_ref().map(|active| active.plan.clone()) else { return };
        if self.inhibitor.is_none() {
            self.inhibitor = Some(Inhibitor::take("software is being changed"));
        }
        if !self.begin(Step::Change(name.clone())) {
            return;
        }
        let started = Instant::now();
        let task = Task {
            host: &self.host,
            contents: &self.settings.contents,
            plan: &plan,
            facts: &self.seen.facts,
            kubeadm: &self.settings.config.kubeadm,
            cluster: self.cluster.as_ref(),
        };
        let result = to_the_end(one.ensure(&task, version), self.stop.clone()).await;
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

    async fn reboot(&mut self) {
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
        if !self.begin(Step::Reboot) {
            return;
        }
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

    /// Writes a step to the journal before it begins; without that it does not begin.
    fn begin(&mut self, step: Step) -> bool {
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
    async fn finish(&mut self, origin: Origin) {
        self.set_state(Phase::Verifying, Reason::CheckingServices, "checking services".to_owned());
        self.publish().await;
        if !self.look().await {
            return;
        }
        let checked = to_the_end(verify(&self.host, &self.seen), self.stop.clone()).await;
        let result = match checked {
            Ok(()) if origin == Origin::Metadata => self.mark_initialized().await,
            other => other,
        };
        if let Err(failure) = result {
            return self.fail(&failure);
        }
        if self.decide().await == (Decision::Finish { origin }) {
            self.journal.finish(Timestamp::now());
            self.unsaved = true;
            self.save_if_needed();
            tracing::info!(plan = ?self.journal.observed.as_ref().map(ToString::to_string), "the plan is reached");
        }
    }

    async fn mark_initialized(&mut self) -> Result<(), Failure> {
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

    fn fail(&mut self, failure: &Failure) {
        self.record(failure);
        self.known = false;
    }

    fn record(&mut self, failure: &Failure) {
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

    fn save(&mut self) -> Result<(), Failure> {
        self.journal.write(&self.host.path(JOURNAL))?;
        self.unsaved = false;
        Ok(())
    }

    /// Saves what is not urgent; a full disk keeps it in memory until there is space.
    fn save_if_needed(&mut self) {
        if self.unsaved
            && let Err(failure) = self.save()
        {
            tracing::error!("the journal is not on the disk: {failure}");
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            attempts: self.settings.config.attempts,
            delay: SignedDuration::from_secs(self.settings.config.retry_seconds.into()),
        }
    }

    fn set_state(&mut self, phase: Phase, reason: Reason, message: String) {
        let same = |state: &State| state.phase == phase && state.reason == reason;
        let since = if same(&self.state) {
            self.state.since
        } else {
            // After a restart of the agent the Node still knows since when.
            let published = match &*self.view.borrow() {
                View::Seen { annotations, .. } => annotations.get(annotations::STATE).cloned(),
                _ => None,
            };
            let published = published.and_then(|text| serde_json::from_str::<State>(&text).ok());
            published.filter(same).map_or_else(Timestamp::now, |state| state.since)
        };
        let attempt = match (&self.journal.active, &self.journal.quarantine) {
            (Some(active), _) => active.attempt,
            (None, Some(quarantine)) if phase == Phase::Quarantined => quarantine.attempts,
            _ => 0,
        };
        self.state = State {
            phase,
            reason,
            message,
            since,
            attempt,
            boot_id: self.seen.facts.boot.to_string(),
            agent_version: std::mem::take(&mut self.state.agent_version),
        };
        let text = format!("{phase} ({reason}): {}", self.state.message);
        tracing::debug!(phase = %phase, reason = %reason, attempt, "{text}");
        notify::status(&text);
        let plan = self.asked_plan();
        let name = self.node.name().as_str().to_owned();
        self.shared.set(&name, &self.state, &self.seen, &self.journal, plan.as_ref());
    }

    /// Brings the Node's annotations up to date if it can be reached. Whether it wrote (and so read) anything.
    async fn publish(&mut self) -> bool {
        let patch = match &*self.view.borrow() {
            View::Seen { annotations, .. } => {
                report::patch(annotations, &report::report(&self.seen, &self.journal, &self.state))
            }
            View::NoCredential | View::Silent { .. } => None,
        };
        let Some(patch) = patch else { return false };
        match self.node.patch(&patch).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("the Node's annotations cannot be written: {}", Chain(&error));
                if error.is_refusal() {
                    self.refused = Some(error.to_string());
                }
                false
            }
        }
    }

    /// Waits until there is a reason to look again, at the latest until `until`.
    async fn wait(&mut self, until: Option<Timestamp>) {
        let resync = Duration::from_secs(self.settings.config.resync_seconds.get().into());
        let pause = until.map_or(resync, |until| {
            let left = until.duration_since(Timestamp::now());
            Duration::try_from(left).unwrap_or_default().min(resync)
        });
        self.fresh = false;
        let mut look = true;
        tokio::select! {
            // What the Node says is acted on at once; the host is looked at before it is touched. A content that was
            // delivered just before a plan that names it is part of what is said.
            _ = self.view.changed() => look = false,
            _ = self.stop.wait_for(|stop| *stop) => return,
            () = sleep(pause) => {}
            () = self.shared.retry.notified() => {
                tracing::info!("a person asked for another attempt");
                self.journal.retry();
                self.unsaved = true;
            }
            _ = self.files.changed() => {}
        }
        match Settings::read(&self.directory) {
            Ok(settings) => self.settings = settings,
            Err(error) => tracing::error!("the old settings stay in force: {}", Chain(&error)),
        }
        if look {
            self.known = false;
        } else {
            self.seen.contents = self.settings.contents.versions();
        }
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
