//! The loop: observe, decide, act, one action at a time; and whatever it learns goes to the journal first and to
//! the Node as soon as that can be reached.

mod act;
mod say;

use std::{path::PathBuf, sync::Arc, time::Duration};

use common::{
    annotations::{self, Request},
    plan::{Plan, PlanId},
    state::{Phase, Reason, State},
};
use jiff::{SignedDuration, Timestamp};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::{
    config::Settings,
    decide::{Asked, Decision, Rest, Snapshot, Standing, decide, needs_cluster},
    failure::Failure,
    host::Host,
    inhibitor::Inhibitor,
    journal::{Failed, Journal, Limits},
    node::{Chain, Cluster, OwnNode, View},
    notify, observe,
    observe::{BootId, HostState},
    software,
    status::Shared,
};

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
    /// The plan it was looked at for: some versions are only seen if they are asked for.
    looked_for: Option<PlanId>,
    cluster: Option<Cluster>,
    /// What the API server said when it refused a write.
    refused: Option<String>,
    state: State,
    inhibitor: Option<Inhibitor>,
    /// Comes back to the endpoint while nothing is changed.
    returning: JoinSet<()>,
}

impl Engine {
    /// An agent that goes on where its journal says.
    pub fn new(wiring: Wiring) -> Self {
        let Wiring { directory, settings, host, node, journal, shared, files, stop } = wiring;
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
            looked_for: None,
            cluster: None,
            refused: None,
            state: State::starting(env!("CARGO_PKG_VERSION"), Timestamp::now()),
            inhibitor: None,
            returning: JoinSet::new(),
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
            Decision::Accept { plan, origin, permitted } => self.accept(plan, origin, permitted).await,
            Decision::Change { ref software, ref version } => {
                let message = format!("bringing {software} to {version}");
                if self.confirm(&decision, Phase::Changing, Reason::ChangingSoftware, message).await {
                    self.change(software, version).await;
                }
            }
            Decision::Reboot => self.reboot().await,
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
            Decision::Rest(_) => self.asked_plan().is_some_and(|plan| self.looked_for != Some(plan.id())),
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
            cluster: self.cluster.as_ref().map(|cluster| &cluster.version),
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
            View::Absent => Asked::NoNode,
            View::Refused(why) => Asked::Refusal(why.clone()),
            View::Seen { annotations, .. } => Asked::Node(annotations::read_request(annotations)),
        }
    }

    fn asked_plan(&self) -> Option<Plan> {
        match self.asked() {
            Asked::Metadata(plan) | Asked::Node(Ok(Request { plan: Some(plan), .. })) => Some(plan),
            Asked::Silence { .. } | Asked::Refusal(_) => {
                self.journal.active.as_ref().map(|active| active.plan.clone())
            }
            Asked::Nothing | Asked::NoNode | Asked::Node(_) => None,
        }
    }

    /// Finds out the cluster's version if a decision depends on it; at steady state none does.
    async fn ask_cluster(&mut self, asked: &Asked) {
        self.cluster = None;
        let Asked::Node(Ok(Request { plan: Some(plan), .. })) = asked else { return };
        let Some(target) = software::kubernetes_of(plan) else { return };
        if !needs_cluster(&self.seen, &target) {
            return;
        }
        match self.node.cluster().await {
            Ok(cluster) => self.cluster = Some(cluster),
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
                self.looked_for = plan.map(|plan| plan.id());
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
        self.return_to_endpoint();
        self.stand(standing);
        self.save_if_needed();
        self.set_state(phase, reason, message);
        self.refused = None;
        self.publish().await;
        // What was refused is what others wait for, and nothing tells when it would be taken.
        let again = Timestamp::now().checked_add(SECOND_LOOK).ok().filter(|_| self.refused.is_some());
        self.wait(until.into_iter().chain(again).min()).await;
    }

    fn stand(&mut self, standing: Standing) {
        let before = self.journal.clone();
        self.journal.stand(standing);
        self.unsaved |= self.journal != before;
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
        // A person does not ask again if this agent ends before it gets there.
        self.save_if_needed();
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
