//! Doing one thing. Each can be done again after a crash at any point of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use common::{annotations, metadata::NodeName, state::Phase};
use tokio::time::{Instant, sleep};

use super::{
    context::Context,
    decide::{Action, first_plan},
    observe::{connect, control_planes, look, look_at_cluster},
    run::Stop,
    snapshot::{Cluster, Host, Role, Snapshot},
};
use crate::{
    bootstrap::{
        agent,
        host::{HostReport, KubeadmState},
        kubeadm::{self, InitConfiguration, JoinConfiguration, TokenDiscovery, Verb, documents},
        ssh::Remote,
    },
    cluster::{self, Access, CertificateKey, NodeView, Token},
    provider::{Compute, Power},
};

/// A machine that was switched on may take this long until sshd answers; servers check their memory first.
const BOOT_PATIENCE: Duration = Duration::from_mins(10);

/// Packages and images, a restart, and the agent's own attempts.
const SOFTWARE_PATIENCE: Duration = Duration::from_mins(30);

/// kubeadm's own waits add up to some ten minutes before it gives up.
const KUBEADM_PATIENCE: Duration = Duration::from_mins(15);

/// Until a Node is Ready: its pod network may have to be fetched first.
const READY_PATIENCE: Duration = Duration::from_mins(10);

/// An API server that restarts is back within a minute.
const API_PATIENCE: Duration = Duration::from_mins(5);

/// Between two looks at something that takes seconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What an action found out or made.
#[derive(Debug)]
pub(super) enum Found {
    /// A new compute.
    Compute(Compute),
    /// A host as it is now, and the Nodes if they changed with it.
    Host(Box<HostReport>, Option<Nodes>),
    /// The cluster as it is now.
    Cluster(Box<(Cluster, Option<Access>)>),
    /// The Nodes as they are now; the rest of the cluster is as it was.
    Nodes(Nodes),
    /// A compute is no more; the Nodes without it.
    Gone(Option<Nodes>),
}

/// Nodes by name.
pub(super) type Nodes = BTreeMap<NodeName, NodeView>;

/// What an action works with: the state when it was decided.
pub(super) struct Task<'a> {
    pub(super) context: &'a Context,
    pub(super) snapshot: Snapshot,
    pub(super) access: Option<Access>,
    /// Tells why it takes long.
    pub(super) note: Box<dyn Fn(String) + 'a>,
    /// Whether someone asked the run to stop; what only waits is ended without it.
    pub(super) stop: Stop,
}

impl Task<'_> {
    /// Does it.
    pub(super) async fn run(&self, action: &Action) -> anyhow::Result<Found> {
        match action {
            Action::Create { group, name } => {
                let group = self.snapshot.groups.get(*group).context("a group that is not there")?;
                let provider = self.context.provider(&group.provider)?;
                Ok(Found::Compute(provider.create(&group.pool, name).await?))
            }
            Action::PowerOn(name) => {
                let host = self.host(name)?;
                let group = self.snapshot.group(host)?;
                let provider = self.context.provider(&group.provider)?;
                provider.power(&host.compute, Power::On).await?;
                Ok(Found::Compute(Compute { power: Power::On, ..host.compute.clone() }))
            }
            Action::Connect(name) => self.await_connection(name).await,
            Action::Deliver(name) => self.deliver(name).await,
            Action::AwaitInitialized(name) => self.await_initialized(name).await,
            Action::Reset(name) => {
                let host = self.host(name)?;
                let remote = self.remote(host).await?;
                let state = host.seen().map_or(KubeadmState::None, |report| report.kubeadm.clone());
                kubeadm::reset(&remote, &state).await?;
                self.look(name).await
            }
            Action::Init(name) => self.init(name).await,
            Action::Join(name, role) => self.join(name, *role).await,
            Action::AwaitKubeadm(name) => self.await_kubeadm(name).await,
            Action::AwaitApi => self.await_api().await,
            Action::Apply => self.apply().await,
            Action::Register(name) => {
                let host = self.host(name)?;
                let group = self.snapshot.group(host)?;
                let node = self.snapshot.cluster.node(name).context("its Node is gone")?;
                let plan = first_plan(node, Some(host)).map(annotations::write_plan).unwrap_or_default();
                cluster::register(&self.access()?.client, name, &group.labels, &plan).await?;
                self.look_at_nodes().await
            }
            Action::AwaitReady(name) => self.await_ready(name).await,
            Action::Keep(name) => {
                cluster::unmark_removing(&self.access()?.client, name).await?;
                self.look_at_nodes().await
            }
            Action::Remove(name) => self.remove(name).await,
        }
    }

    pub(super) fn host(&self, name: &NodeName) -> anyhow::Result<&Host> {
        self.snapshot.hosts.get(name).with_context(|| format!("{name} is not there"))
    }

    fn access(&self) -> anyhow::Result<&Access> {
        self.access.as_ref().context("the API does not answer")
    }

    pub(super) async fn remote(&self, host: &Host) -> anyhow::Result<Arc<Remote>> {
        connect(self.context, &self.snapshot.groups, host).await
    }

    pub(super) async fn report(&self, name: &NodeName) -> anyhow::Result<HostReport> {
        look(self.context, &self.snapshot.groups, self.host(name)?).await
    }

    async fn look(&self, name: &NodeName) -> anyhow::Result<Found> {
        Ok(Found::Host(Box::new(self.report(name).await?), None))
    }

    async fn look_at_nodes(&self) -> anyhow::Result<Found> {
        Ok(Found::Nodes(cluster::list(&self.access()?.client).await?))
    }

    /// The Nodes, if there is a way to them.
    pub(super) async fn known_nodes(&self) -> Option<Nodes> {
        cluster::list(&self.access.as_ref()?.client).await.ok()
    }

    async fn look_at_cluster(&self) -> anyhow::Result<Found> {
        Ok(Found::Cluster(Box::new(look_at_cluster(self.context, &self.snapshot).await)))
    }

    /// A host that restarts or is not up yet does not answer; one that answers with a wrong key never will.
    async fn await_connection(&self, name: &NodeName) -> anyhow::Result<Found> {
        let deadline = Instant::now() + BOOT_PATIENCE;
        loop {
            let error = match self.report(name).await {
                Ok(report) => return Ok(Found::Host(Box::new(report), None)),
                Err(error) => error,
            };
            let away = error.downcast_ref().is_some_and(crate::bootstrap::Error::is_away);
            if !away || Instant::now() > deadline {
                return Err(error);
            }
            (self.note)(format!("{error:#}"));
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn deliver(&self, name: &NodeName) -> anyhow::Result<Found> {
        let host = self.host(name)?;
        let delivery = self.context.delivery(&self.snapshot, host)?;
        let delivery = delivery.context("nobody knows yet what it is to have")?;
        self.context.provider(&self.snapshot.group(host)?.provider)?.supply().await?;
        let joined = host.seen().is_some_and(|report| report.kubeadm == KubeadmState::Done);
        agent::deliver(&*self.remote(host).await?, &delivery, joined).await?;
        self.look(name).await
    }

    async fn await_initialized(&self, name: &NodeName) -> anyhow::Result<Found> {
        let host = self.host(name)?;
        let Some(Ok((_, plan))) = &host.wanted else { bail!("nothing is wanted of it") };
        let deadline = Instant::now() + SOFTWARE_PATIENCE;
        let mut last = "its agent has not said anything".to_owned();
        loop {
            // The host waits by itself: a look at all of it costs as much as some of the work it waits for.
            let waited =
                async { anyhow::Ok(agent::wait(&*self.remote(host).await?, &plan.id()).await?) }.await;
            if waited.is_err() {
                sleep(LOOK_INTERVAL).await;
            }
            match self.report(name).await {
                Ok(report) => {
                    if report.initialized.as_ref().is_some_and(|mark| mark.plan == plan.id()) {
                        return Ok(Found::Host(Box::new(report), None));
                    }
                    if let Some(state) = &report.agent {
                        last = format!("{} ({}): {}", state.phase, state.reason, state.message);
                        if matches!(state.phase, Phase::Quarantined | Phase::Refused) {
                            bail!(
                                "its node-agent gave up: {last}; `node-agent retry` on the host starts it again"
                            );
                        }
                    }
                }
                // It may restart itself.
                Err(error) => last = format!("{error:#}"),
            }
            if Instant::now() > deadline {
                bail!("it does not have its software after {} min: {last}", SOFTWARE_PATIENCE.as_secs() / 60);
            }
            (self.note)(last.clone());
        }
    }

    async fn init(&self, name: &NodeName) -> anyhow::Result<Found> {
        let host = self.host(name)?;
        let group = self.snapshot.group(host)?;
        let registration = self.context.registration(host, group)?;
        let init = InitConfiguration::new(registration, self.context.api_server(host), Token::throwaway()?);
        let mut parts = vec![serde_json::to_value(init)?];
        parts.extend(self.context.cluster_documents(host, group)?);
        kubeadm::start(&*self.remote(host).await?, Verb::Init, &documents(parts)).await?;
        self.await_kubeadm(name).await
    }

    async fn join(&self, name: &NodeName, role: Role) -> anyhow::Result<Found> {
        let client = &self.access()?.client;
        let key = match role {
            Role::Worker => None,
            Role::ControlPlane => Some(CertificateKey::new()?),
        };
        let token = Token::create(client).await?;
        let joined = self.join_with(name, &token, key.as_ref()).await;
        let withdrawn = cluster::withdraw(client, token, key).await;
        let found = joined?;
        withdrawn?;
        Ok(found)
    }

    async fn join_with(
        &self,
        name: &NodeName,
        token: &Token,
        key: Option<&CertificateKey>,
    ) -> anyhow::Result<Found> {
        let access = self.access()?;
        let host = self.host(name)?;
        let group = self.snapshot.group(host)?;
        let first = control_planes(&self.snapshot).next().context("no control plane answers")?;
        let discovery = TokenDiscovery {
            token: token.expose(),
            api_server_endpoint: self.context.endpoint(first.compute.address),
            ca_cert_hashes: vec![access.ca_hash.clone()],
        };
        let mut join = JoinConfiguration::worker(discovery, self.context.registration(host, group)?);
        if let Some(key) = key {
            self.lay_down_certificates(first, key).await?;
            join = join.as_control_plane(self.context.api_server(host), key.expose());
        }
        let config = documents([serde_json::to_value(join)?]);
        kubeadm::start(&*self.remote(host).await?, Verb::Join, &config).await?;
        self.await_kubeadm(name).await
    }

    async fn lay_down_certificates(&self, first: &Host, key: &CertificateKey) -> anyhow::Result<()> {
        let group = self.snapshot.group(first)?;
        let registration = self.context.registration(first, group)?;
        let init = InitConfiguration::new(registration, self.context.api_server(first), Token::throwaway()?)
            .with_certificate_key(key.expose());
        let mut parts = vec![serde_json::to_value(init)?];
        parts.extend(self.context.cluster_documents(first, group)?);
        kubeadm::upload_certificates(&*self.remote(first).await?, &documents(parts)).await?;
        Ok(())
    }

    /// Waits for kubeadm's end, over as many connections as it takes.
    async fn await_kubeadm(&self, name: &NodeName) -> anyhow::Result<Found> {
        let host = self.host(name)?;
        let deadline = Instant::now() + KUBEADM_PATIENCE;
        loop {
            // Also the look at its end is taken again: of a kubeadm whose end nobody saw nobody knows what to do next.
            let ended = async {
                let ended = kubeadm::wait(&*self.remote(host).await?).await?;
                anyhow::Ok(if ended { Some(self.report(name).await?) } else { None })
            };
            match ended.await {
                Ok(Some(report)) => {
                    return Ok(Found::Host(Box::new(report), self.known_nodes().await));
                }
                Ok(None) => {}
                Err(error) => {
                    self.context.connections.forget(name);
                    (self.note)(format!("{error:#}"));
                    sleep(LOOK_INTERVAL).await;
                }
            }
            if Instant::now() > deadline {
                bail!("kubeadm has not ended after {} min", KUBEADM_PATIENCE.as_secs() / 60);
            }
        }
    }

    async fn await_api(&self) -> anyhow::Result<Found> {
        let deadline = Instant::now() + API_PATIENCE;
        loop {
            let seen = look_at_cluster(self.context, &self.snapshot).await;
            match &seen.0 {
                Cluster::Silent(why) if Instant::now() < deadline => (self.note)(why.clone()),
                Cluster::Silent(why) => bail!("the API does not answer: {why}"),
                _ => return Ok(Found::Cluster(Box::new(seen))),
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn apply(&self) -> anyhow::Result<Found> {
        let client = &self.access()?.client;
        for object in self.context.manifests.pending(client).await? {
            (self.note)(object.title());
            object.apply(client).await?;
        }
        self.look_at_cluster().await
    }

    async fn await_ready(&self, name: &NodeName) -> anyhow::Result<Found> {
        let client = &self.access()?.client;
        let boot_id = &self.host(name)?.seen().context("it does not answer")?.boot_id;
        let ready = cluster::wait_until_ready(client, name, boot_id, READY_PATIENCE, &*self.note).await;
        ready.map_err(|why| anyhow!("its Node is not Ready: {why}"))?;
        self.look_at_nodes().await
    }
}
