//! The loop: whatever can be done is done at once, and each end is a reason to decide anew.

#[cfg(test)]
mod course;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use common::metadata::NodeName;
use futures::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use tokio::sync::watch;

use super::{
    act::{Found, Nodes, Task},
    context::Context,
    decide::{Action, Decision, decide, exclusive},
    foresee::foresee,
    observe::{console, look_at_cluster, observe, take_compute, take_end, take_report},
    progress::{Event, Of, Progress, Stage, UnderWay},
    removal,
    rollout::{self, Targets},
    snapshot::{Cluster, Host, Removals, Snapshot},
    write::Writer,
};
use crate::{
    bootstrap::host::{HostReport, KubeadmState},
    cluster::{self, Access},
    random, retry,
    rollout::{MetricsFile, Outcome as RolloutOutcome, Report, Rollout},
};

/// How often something that fails is tried before the host is left alone in this run.
const ATTEMPTS: u32 = 3;

/// The wait before the second attempt.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// How a run is to go.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long it may take.
    pub timeout: Duration,
    /// How many hosts are worked on at once.
    pub parallel: usize,
    /// What may be taken away.
    pub removals: Removals,
    /// Whether to become the writer although someone else is.
    pub take_over: bool,
    /// Where figures of its rollouts are written, if anywhere.
    pub metrics: Option<Arc<MetricsFile>>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All is as wanted; how many things were done for that.
    Done {
        /// How many.
        changes: usize,
    },
    /// Some of it cannot be done; the rest is.
    Blocked {
        /// What, and why.
        reasons: BTreeMap<String, String>,
    },
    /// Time is up; what was still under way.
    TimedOut {
        /// What, and why it takes long.
        unfinished: Vec<String>,
    },
    /// Someone asked it to stop.
    Stopped,
}

/// What is there after a run.
#[derive(Debug)]
pub struct End {
    /// How it ended.
    pub outcome: Outcome,
    /// What it did with nodes that were to have other versions.
    pub report: Option<Report>,
    /// What was last seen.
    pub snapshot: Snapshot,
}

struct Ended {
    action: Action,
    started: Instant,
    result: anyhow::Result<Found>,
}

/// The state of a run.
struct Run<'a> {
    context: &'a Context,
    options: &'a Options,
    progress: &'a dyn Progress,
    snapshot: Snapshot,
    access: Option<Access>,
    attempts: BTreeMap<Action, u32>,
    under_way: UnderWay<Action>,
    changes: usize,
    /// Steps that were done, and how many it takes in all, as far as that could be foreseen.
    done: usize,
    foreseen: usize,
    stop: Stop,
}

/// Whether someone asked the run to stop.
pub type Stop = watch::Receiver<bool>;

/// Things under way.
type Running<'a> = FuturesUnordered<LocalBoxFuture<'a, Ended>>;

/// Brings what is to what is wanted, as the only writer. When `stop` says so, nothing new is begun, waits end, and what
/// is under way is brought to its end: the next run finds nothing half done.
///
/// Where there is nothing to do, nothing is written, also not who we are.
pub async fn run(
    context: &Context,
    options: &Options,
    progress: &dyn Progress,
    stop: Stop,
) -> anyhow::Result<End> {
    let run = Run::observe(context, options, progress, stop).await?;
    let decision = decide(&run.snapshot);
    if decision.actions.is_empty() && !rollout::is_due(&context.infrastructure, &run.snapshot) {
        let outcome = run.finish(&decision, run.behind());
        if let Some(metrics) = &options.metrics {
            rollout::measure(&context.infrastructure, &run.snapshot, metrics);
        }
        return Ok(End { outcome, report: None, snapshot: run.snapshot });
    }
    let mut writer = Writer::enter(context, options.take_over, progress, run.access.as_ref()).await?;
    let ended = run.work(&mut writer).await;
    writer.leave().await;
    ended
}

/// How a rollout ended.
enum Rolled {
    /// Every node has its versions.
    Through,
    /// These have not, and why.
    Left(BTreeMap<NodeName, String>),
    /// It did not come to its own end.
    Cut(Outcome),
}

impl<'a> Run<'a> {
    async fn observe(
        context: &'a Context,
        options: &'a Options,
        progress: &'a dyn Progress,
        stop: Stop,
    ) -> anyhow::Result<Self> {
        let (mut snapshot, access) = observe(context, options.parallel).await?;
        snapshot.removals = options.removals.clone();
        snapshot.unsure = !options.take_over;
        Ok(Self {
            context,
            options,
            progress,
            snapshot,
            access,
            attempts: BTreeMap::new(),
            under_way: UnderWay::default(),
            changes: 0,
            done: 0,
            foreseen: 0,
            stop,
        })
    }

    /// Looks at everything again.
    async fn observe_anew(&mut self) -> anyhow::Result<()> {
        let (mut snapshot, access) = observe(self.context, self.options.parallel).await?;
        snapshot.removals = self.snapshot.removals.clone();
        snapshot.unsure = self.snapshot.unsure;
        snapshot.failed = self.snapshot.failed.clone();
        // Those that do not answer now either.
        let answers = |name: &NodeName| snapshot.hosts.get(name).is_some_and(|host| host.seen().is_some());
        snapshot.unclear = self.snapshot.unclear.iter().filter(|name| !answers(name)).cloned().collect();
        self.snapshot = snapshot;
        self.access = access;
        Ok(())
    }

    /// Does all there is to do, as the writer.
    async fn work(mut self, writer: &mut Writer<'a>) -> anyhow::Result<End> {
        let deadline = tokio::time::Instant::now() + self.options.timeout;
        let mut report = None;
        loop {
            // What was seen before may have been changed by the writer before us, or by the rollout. A host that hangs
            // may keep us for longer than others wait.
            writer.keep_during(self.observe_anew()).await?;
            self.foreseen = self.done + foresee(&self.snapshot).0.len();
            self.progress.reached(self.done, self.foreseen, Of::Steps);
            let outcome = self.scale(writer, deadline).await?;
            if !matches!(outcome, Outcome::TimedOut { .. }) {
                let tidied = async {
                    self.tidy().await;
                    anyhow::Ok(())
                };
                writer.keep_during(tidied).await?;
            }
            let due = rollout::is_due(&self.context.infrastructure, &self.snapshot);
            if !due || matches!(outcome, Outcome::TimedOut { .. } | Outcome::Stopped) {
                return Ok(End { outcome, report, snapshot: self.snapshot });
            }
            let (rolled, done) = self.roll_out(writer, deadline).await?;
            self.changes += done.actions;
            report.get_or_insert_default().follow(done);
            let left = match rolled {
                // Hosts may have waited for it.
                Rolled::Through => continue,
                Rolled::Left(reasons) => reasons,
                Rolled::Cut(outcome) => return Ok(End { outcome, report, snapshot: self.snapshot }),
            };
            // Not again in this run: what was tried and given up stands only in its reasons.
            writer.keep_during(self.observe_anew()).await?;
            let outcome = self.finish(&decide(&self.snapshot), left);
            return Ok(End { outcome, report, snapshot: self.snapshot });
        }
    }

    /// Brings hosts, nodes and objects to what is wanted.
    async fn scale(
        &mut self,
        writer: &mut Writer<'a>,
        deadline: tokio::time::Instant,
    ) -> anyhow::Result<Outcome> {
        let mut running = Running::new();
        loop {
            if let Some(access) = &self.access {
                writer.enter_cluster(access).await?;
                self.snapshot.unsure = false;
            }
            let turn = tokio::select! {
                turn = self.turn(&mut running, deadline) => turn?,
                lost = writer.keep() => return Err(lost.into()),
            };
            if let Some(outcome) = turn {
                return Ok(outcome);
            }
        }
    }

    /// Removes what a run left that was killed, as long as no host may still need it. It is not worth a failure: what
    /// stays ends by itself.
    async fn tidy(&self) {
        let Snapshot { hosts, unclear, .. } = &self.snapshot;
        let running = |report: &HostReport| report.kubeadm == KubeadmState::Running;
        let joining = !unclear.is_empty() || hosts.values().filter_map(Host::seen).any(running);
        if let Some(access) = self.access.as_ref().filter(|_| !joining)
            && let Err(error) = cluster::remove_leftovers(&access.client).await
        {
            tracing::warn!("tokens of a run before may be left: {}", error.in_full());
        }
    }

    /// Takes nodes to other versions.
    async fn roll_out(
        &mut self,
        writer: &mut Writer<'a>,
        deadline: tokio::time::Instant,
    ) -> anyhow::Result<(Rolled, Report)> {
        let Some(access) = &self.access else { return Ok((Rolled::Through, Report::default())) };
        let (infrastructure, targets) = (&self.context.infrastructure, Targets::new(&self.snapshot));
        let identity = writer.identity().to_owned();
        let rollout = Rollout {
            clients: &access.clients,
            identity: &identity,
            policy: rollout::policy(infrastructure),
            targets: &|node| targets.of(node),
            progress: self.progress,
            stop: self.stop.clone(),
            deadline,
            metrics: self.options.metrics.as_deref(),
        };
        let (ended, report) = tokio::select! {
            ended = rollout.run() => ended?,
            held = writer.replaced() => return Err(held.into()),
        };
        let rolled = match ended {
            RolloutOutcome::Ended(decision) => {
                let left: BTreeMap<NodeName, String> =
                    decision.left().map(|(name, node)| (name.clone(), node.to_string())).collect();
                if left.is_empty() { Rolled::Through } else { Rolled::Left(left) }
            }
            RolloutOutcome::TimedOut(decision) => {
                let unfinished = decision.left().map(|(name, node)| format!("{name} ({node})")).collect();
                Rolled::Cut(Outcome::TimedOut { unfinished })
            }
            RolloutOutcome::Stopped => Rolled::Cut(Outcome::Stopped),
        };
        Ok((rolled, report))
    }

    /// Begins what can be begun and waits until something ends; gives how the run ended, if it did.
    async fn turn(
        &mut self,
        running: &mut Running<'a>,
        deadline: tokio::time::Instant,
    ) -> anyhow::Result<Option<Outcome>> {
        let decision = decide(&self.snapshot);
        let stopped = *self.stop.borrow();
        for action in decision.actions.iter().filter(|_| !stopped) {
            if running.len() < self.options.parallel {
                running.push(self.start(action.clone()));
            }
        }
        self.progress.waiting(&decision.waiting);
        Ok(match tokio::time::timeout_at(deadline, running.next()).await {
            Err(_) => {
                let unfinished = self.under_way.list().into_iter().map(|(action, why)| match why.as_str() {
                    "" => action.to_string(),
                    why => format!("{action} ({why})"),
                });
                Some(Outcome::TimedOut { unfinished: unfinished.collect() })
            }
            Ok(Some(ended)) => {
                self.take_in(ended).await?;
                None
            }
            Ok(None) if stopped => Some(Outcome::Stopped),
            Ok(None) => Some(self.finish(&decision, self.behind())),
        })
    }

    /// Begins an action; the snapshot knows that it is under way.
    fn start(&mut self, action: Action) -> LocalBoxFuture<'a, Ended> {
        match action.host() {
            Some(host) => drop(self.snapshot.busy.insert(host.clone())),
            None => self.snapshot.applying = true,
        }
        if let Some(host) = exclusive(&self.snapshot, &action) {
            self.snapshot.busy_control_planes.insert(host);
        }
        if !action.is_wait() {
            self.changes += 1;
        }
        let attempt = self.attempts.get(&action).copied().unwrap_or(0);
        let progress = self.progress;
        progress.event(&Event::new(&action, Stage::Started));
        let note_action = action.clone();
        let under_way = self.under_way.clone();
        under_way.say(&action, String::new());
        let note = move |text: String| {
            under_way.say(&note_action, text.clone());
            progress.event(&Event::new(&note_action, Stage::Note(text)));
        };
        let task = Task {
            context: self.context,
            snapshot: self.snapshot.clone(),
            access: self.access.clone(),
            note: Box::new(note),
            stop: self.stop.clone(),
        };
        let stop = self.stop.clone();
        Box::pin(async move {
            let started = Instant::now();
            if attempt > 0 {
                tokio::time::sleep(retry::delay(RETRY_DELAY, attempt, random::fraction())).await;
            }
            let work = task.run(&action);
            let result = if action.is_wait() { unless_stopped(work, &stop).await } else { work.await };
            Ended { action, started, result }
        })
    }

    /// Learns from an action's end.
    async fn take_in(&mut self, ended: Ended) -> anyhow::Result<()> {
        let Ended { action, started, result } = ended;
        self.under_way.end(&action);
        match action.host() {
            Some(host) => {
                self.snapshot.busy.remove(host);
                self.snapshot.busy_control_planes.remove(host);
            }
            None => self.snapshot.applying = false,
        }
        match result {
            Ok(found) => {
                self.progress.event(&Event::new(&action, Stage::Done(started.elapsed())));
                self.done += 1;
                self.progress.reached(self.done, self.foreseen, Of::Steps);
                self.learn(&action, found).await
            }
            Err(error) => {
                let error = self.with_console(&action, error).await;
                self.fail(&action, &error);
                Ok(())
            }
        }
    }

    /// A host that does not answer says why only on its console.
    async fn with_console(&self, action: &Action, error: anyhow::Error) -> anyhow::Error {
        let Action::Connect(name) = action else { return error };
        let Some(host) = self.snapshot.hosts.get(name) else { return error };
        match console(self.context, &self.snapshot, host).await {
            Some(console) => anyhow!("{error:#}; {console}"),
            None => error,
        }
    }

    async fn learn(&mut self, action: &Action, found: Found) -> anyhow::Result<()> {
        match found {
            Found::Compute(compute) => {
                let known = self.snapshot.hosts.get(&compute.name).map(|host| host.group);
                let index = match (action, known) {
                    (Action::Create { group, .. }, _) => *group,
                    (_, Some(group)) => group,
                    _ => return Ok(()),
                };
                take_compute(self.context, &mut self.snapshot, index, compute);
            }
            Found::Host(report, nodes) => {
                let Some(name) = action.host() else { return Ok(()) };
                if let KubeadmState::Failed(_) = report.kubeadm
                    && ran_kubeadm(action)
                {
                    *self.snapshot.kubeadm_failures.entry(name.clone()).or_default() += 1;
                }
                let joined = report.kubeadm == KubeadmState::Done && ran_kubeadm(action);
                take_report(self.context, &mut self.snapshot, name, Ok(*report));
                if joined {
                    self.take_nodes(nodes).await;
                }
            }
            Found::Nodes(nodes) => self.take_nodes(Some(nodes)).await,
            Found::Gone(nodes) => {
                let Some(name) = action.host() else { return Ok(()) };
                take_end(self.context, &mut self.snapshot, name);
                self.snapshot.removals.done += 1;
                self.snapshot.removals.replace.remove(name);
                self.take_nodes(nodes).await;
            }
            Found::Cluster(seen) => {
                let (cluster, access) = *seen;
                self.take_cluster(cluster, access);
            }
        }
        Ok(())
    }

    /// Learns of other Nodes; without them, or without a cluster so far, by a look at all of it.
    async fn take_nodes(&mut self, nodes: Option<Nodes>) {
        if let (Cluster::There(view), Some(nodes)) = (&mut self.snapshot.cluster, nodes) {
            view.nodes = nodes;
            return;
        }
        let (cluster, access) = look_at_cluster(self.context, &self.snapshot).await;
        self.take_cluster(cluster, access);
    }

    fn take_cluster(&mut self, cluster: Cluster, access: Option<Access>) {
        self.snapshot.cluster = cluster;
        if access.is_some() {
            self.access = access;
        }
    }

    /// Counts a failure; after the last attempt its host is left alone.
    fn fail(&mut self, action: &Action, error: &anyhow::Error) {
        let why = format!("{error:#}");
        if let Some(host) = action.host() {
            // The next attempt is with a new connection: this one may be what failed.
            self.context.connections.forget(host);
            if touches_kubeadm(action) {
                self.snapshot.doubt(host);
            }
        }
        let attempts = self.attempts.entry(action.clone()).or_default();
        *attempts += 1;
        let last = *attempts >= ATTEMPTS || action.is_wait() || removal::is_held(error);
        self.progress.event(&Event::new(action, Stage::Failed { why: why.clone(), last }));
        if last {
            let why = format!("cannot {action}: {why}");
            match action.host() {
                Some(host) => drop(self.snapshot.failed.insert(host.clone(), why)),
                None => self.snapshot.cluster_failed = Some(why),
            }
        }
    }

    /// How it ended, if `left` are the nodes that have not their versions.
    fn finish(&self, decision: &Decision, left: BTreeMap<NodeName, String>) -> Outcome {
        let mut reasons = decision.blocked.clone();
        for (name, why) in decision.waiting.clone().into_iter().chain(left) {
            reasons.entry(name.to_string()).or_insert(why);
        }
        if reasons.is_empty() {
            Outcome::Done { changes: self.changes }
        } else {
            Outcome::Blocked { reasons }
        }
    }

    /// The nodes that have not their versions, and why, by what was last seen.
    fn behind(&self) -> BTreeMap<NodeName, String> {
        rollout::blocked(&self.context.infrastructure, &self.snapshot)
    }
}

/// Someone asked to stop, and what was under way could be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

/// Does something that can be left at any moment, unless someone asks to stop meanwhile: that is the error [`Stopped`].
pub async fn unless_stopped<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    stop: &Stop,
) -> anyhow::Result<T> {
    let mut stop = stop.clone();
    let asked = async {
        // Without anyone who could ask, nobody does.
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        result = work => result,
        () = asked => Err(Stopped.into()),
    }
}

/// Whether what a host said of its kubeadm before it is not true after it, however it ended.
fn touches_kubeadm(action: &Action) -> bool {
    ran_kubeadm(action) || matches!(action, Action::Reset(_))
}

fn ran_kubeadm(action: &Action) -> bool {
    matches!(action, Action::Init(_) | Action::Join(..) | Action::AwaitKubeadm(_))
}
