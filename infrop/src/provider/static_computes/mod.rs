//! Hosts that are there. The mark of who uses them stands on the hosts themselves; one that does not answer is
//! unknown, never free.

mod bundle;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use common::metadata::{Configuration, KernelModule, NodeName, Swap};
use futures::{StreamExt, future::LocalBoxFuture, stream};
use images::kubernetes::Manifest;

use super::{
    Compute, Error, HostDefaults, Ownership, Pool, Power, Provider, Spares,
    defaults::{Containerd, images, pause},
};
use crate::{
    bootstrap::{
        host::{OWNER, Owner, inspect},
        ssh::{Access, Connections, Remote},
    },
    cluster::Route,
    desired::{InfrastructureName, PoolName, ProviderName, Software, Ssh, StaticHost, StaticProvider},
    writer::{self, HostRecord, Record},
};

/// To write or remove a file.
const SHORT: Duration = Duration::from_secs(30);

/// How many hosts are asked at once for what one of them has to tell: each is a process of ssh here.
const AT_ONCE: usize = 32;

/// What ssh is told before it reads the settings of this computer, of which the first one counts: how hosts are reached
/// is theirs to say (a jump host, an agent), whom to trust is the document's alone. Also, ssh is not to learn other keys
/// from a host it trusts: the file of known hosts is a person's.
const TRUST: &str = "\
GlobalKnownHostsFile /dev/null
KnownHostsCommand none
NoHostAuthenticationForLocalhost no
UpdateHostKeys no
VerifyHostKeyDNS no
Include ~/.ssh/config
Include /etc/ssh/ssh_config
";

/// To purge a package and to wait for a service's last step.
const RELEASE_LIMIT: Duration = Duration::from_mins(5);

/// How hosts are reached, with secrets resolved.
#[derive(Debug)]
pub struct Reach {
    /// The document's word.
    pub ssh: Ssh,
    /// The private key's file, if one was named.
    pub key: Option<PathBuf>,
    /// The document's file of host keys, if one was named.
    pub known_hosts: Option<PathBuf>,
    /// Whether a host that is not known yet is taken down there.
    pub record: bool,
    /// Where files for ssh are kept, for as long as we live.
    pub directory: tempfile::TempDir,
}

/// Hosts that are there.
#[derive(Debug)]
pub struct StaticComputes {
    provider: ProviderName,
    owner: InfrastructureName,
    pools: BTreeMap<PoolName, Vec<StaticHost>>,
    reach: Reach,
    /// Host keys of the document, in the form of ssh.
    pinned: PathBuf,
    /// What else ssh is told.
    trust: PathBuf,
    connections: Arc<Connections>,
    defaults: HostDefaults,
}

/// What a host is, as far as its mark says.
enum Standing {
    Ours,
    Free,
    Foreign(String),
    Unknown(String),
}

impl StaticComputes {
    /// Of a provider of the document.
    pub async fn new(
        provider: ProviderName,
        owner: InfrastructureName,
        wanted: &StaticProvider,
        reach: Reach,
        connections: Arc<Connections>,
        software: &Software,
    ) -> anyhow::Result<Self> {
        let pools = wanted.pools.clone();
        let pinned = reach.directory.path().join(format!("{provider}.known_hosts"));
        std::fs::write(&pinned, known_hosts(&pools, &reach.ssh)).context("cannot write host keys for ssh")?;
        let trust = reach.directory.path().join("ssh_config");
        std::fs::write(&trust, TRUST).context("cannot write settings for ssh")?;
        let defaults = HostDefaults::default();
        let mut computes = Self { provider, owner, pools, reach, pinned, trust, connections, defaults };
        let bundle = computes.bundle(software).await?;
        computes.defaults = defaults_of(bundle.as_ref(), software)?;
        Ok(computes)
    }

    fn hosts(&self) -> impl Iterator<Item = (&PoolName, &StaticHost)> {
        self.pools.iter().flat_map(|(pool, hosts)| hosts.iter().map(move |host| (pool, host)))
    }

    fn find(&self, name: &NodeName) -> anyhow::Result<(&PoolName, &StaticHost)> {
        self.hosts().find(|(_, host)| host.name == *name).with_context(|| format!("there is no host {name}"))
    }

    fn reach(&self, host: &StaticHost) -> Access {
        let Reach { ssh, key, known_hosts, record, directory: _ } = &self.reach;
        // A host whose keys stand in the document has no others, whatever a file says.
        let pinned = !host.host_keys.is_empty();
        let file = known_hosts.as_ref().filter(|_| !pinned).unwrap_or(&self.pinned);
        Access {
            destination: host.address.to_string(),
            config: Some(self.trust.clone()),
            user: Some(ssh.user.clone()),
            port: Some(host.port.unwrap_or(ssh.port)),
            key: key.clone(),
            known_hosts: Some(format!("\"{}\"", file.display()).into()),
            record: *record && known_hosts.is_some() && !pinned,
        }
    }

    async fn remote(&self, host: &StaticHost) -> Result<Arc<Remote>, crate::bootstrap::Error> {
        self.connections.get(&host.name, &self.reach(host)).await
    }

    /// What stands on a host.
    async fn standing(&self, host: &StaticHost) -> Standing {
        let seen = async { inspect(&*self.remote(host).await?).await }.await;
        match seen {
            Ok(report) => match report.owner {
                Some(Owner { infrastructure }) if infrastructure == self.owner.as_str() => Standing::Ours,
                Some(Owner { infrastructure }) => {
                    Standing::Foreign(format!("the infrastructure {infrastructure}"))
                }
                None if report.joined => Standing::Foreign("a cluster that infrop did not make".to_owned()),
                None => Standing::Free,
            },
            Err(error) => {
                self.connections.forget(&host.name);
                Standing::Unknown(error.to_string())
            }
        }
    }

    /// Those of some hosts that nobody else has; why there is none, if there is none.
    async fn free_or_ours<'a>(&self, hosts: &[&'a StaticHost]) -> anyhow::Result<Vec<&'a StaticHost>> {
        let looks = hosts.iter().map(|host| async { (*host, self.standing(host).await) });
        let (mut found, mut reasons) = (Vec::new(), Vec::new());
        for (host, standing) in some_at_once(AT_ONCE, looks).await {
            match standing {
                Standing::Ours | Standing::Free => found.push(host),
                Standing::Foreign(owner) => reasons.push(format!("{} belongs to {owner}", host.name)),
                Standing::Unknown(why) => reasons.push(why),
            }
        }
        if found.is_empty() {
            bail!(reasons.join("; "));
        }
        Ok(found)
    }

    fn compute(pool: &PoolName, host: &StaticHost, ownership: Ownership) -> Compute {
        // Nothing tells whether a host that does not answer is switched on.
        let power = if ownership == Ownership::Ours { Power::On } else { Power::Unknown };
        Compute { name: host.name.clone(), pool: pool.clone(), address: host.address, ownership, power }
    }

    async fn claim(&self, pool: &PoolName, name: &NodeName) -> anyhow::Result<Compute> {
        let (_, host) = self.find(name)?;
        let owner = Owner { infrastructure: self.owner.to_string() };
        let text = serde_json::to_string(&owner)?;
        // A link is made only if nothing is there: of two that claim at once, one sees the other's mark.
        let script = format!(
            "mkdir -p \"$(dirname {OWNER})\"\nmine=$(mktemp {OWNER}.XXXXXX)\ntrap 'rm -f \"$mine\"' EXIT\n\
             cat > \"$mine\"\nchmod 644 \"$mine\"\nsync \"$mine\"\nln \"$mine\" {OWNER} 2>/dev/null || true\n\
             sync \"$(dirname {OWNER})\"\ncat {OWNER}"
        );
        let remote = self.remote(host).await?;
        let answer = remote.run_with("take the mark of ownership", SHORT, &script, text.as_bytes()).await?;
        let marked: Owner = serde_json::from_str(&answer).context("its mark of ownership cannot be read")?;
        if marked != owner {
            bail!("it belongs to the infrastructure {}", marked.infrastructure);
        }
        Ok(Self::compute(pool, host, Ownership::Ours))
    }

    async fn give_back(&self, name: &NodeName) -> anyhow::Result<()> {
        let (_, host) = self.find(name)?;
        let remote = match self.remote(host).await {
            Ok(remote) => remote,
            // A host that is dead keeps its mark: should it come back, nobody takes it for free.
            Err(error) if error.is_away() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let script = format!(
            "export DEBIAN_FRONTEND=noninteractive\n\
             if dpkg-query --show node-agent >/dev/null 2>&1; then dpkg --purge node-agent >&2; fi\n\
             rm -rf /etc/node-agent /var/lib/node-agent\n{}",
            writer::clearing()
        );
        remote.run("give up what infrop put there", RELEASE_LIMIT, &script).await?;
        self.connections.forget(name);
        Ok(())
    }

    /// The manifest of the bundle that hosts have, as the first that can tell it.
    async fn bundle(&self, software: &Software) -> anyhow::Result<Option<(Manifest, PathBuf)>> {
        let Some(directory) = bundle::directory(software.bundle.as_ref(), &software.kubernetes) else {
            return Ok(None);
        };
        let file = &directory.join("bundle.json");
        let looks = self.hosts().map(|(_, host)| async move {
            let answer = match self.remote(host).await {
                Ok(remote) => bundle::ask(&remote, self.owner.as_str(), file).await,
                Err(_) => bundle::Answer::Silent,
            };
            (host.name.clone(), answer)
        });
        let looks = stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        Ok(bundle::first_told(looks).await?.map(|manifest| (manifest, directory)))
    }

    fn error(&self, what: String) -> impl FnOnce(anyhow::Error) -> Error {
        let provider = self.provider.clone();
        move |source| Error { provider, what, source }
    }
}

/// What all of them say, in their order, with so many asked at once.
async fn some_at_once<T>(at_once: usize, looks: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    stream::iter(looks.collect::<Vec<_>>()).buffered(at_once.max(1)).collect().await
}

/// The document's host keys as ssh reads them.
fn known_hosts(pools: &BTreeMap<PoolName, Vec<StaticHost>>, ssh: &Ssh) -> String {
    let mut text = String::new();
    for host in pools.values().flatten() {
        let port = host.port.unwrap_or(ssh.port);
        for key in &host.host_keys {
            let _ = match port {
                22 => writeln!(text, "{} {key}", host.address),
                port => writeln!(text, "[{}]:{port} {key}", host.address),
            };
        }
    }
    text
}

/// What real hosts need: what kubeadm's documentation asks for.
fn defaults_of(bundle: Option<&(Manifest, PathBuf)>, software: &Software) -> anyhow::Result<HostDefaults> {
    let pause = bundle.map(|(manifest, _)| pause(manifest)).transpose()?;
    let containerd = Containerd { pause, systemd: true, shared: false };
    let images = bundle.map(|(manifest, directory)| images(manifest, directory)).transpose()?;
    let modules: [KernelModule; 2] = ["br_netfilter".parse()?, "overlay".parse()?];
    let mut versions = BTreeMap::new();
    if let Some(version) = bundle.and_then(|(manifest, _)| manifest.components.get("containerd")) {
        versions.insert("containerd".parse()?, version.parse()?);
    }
    let has_containerd =
        !versions.is_empty() || software.versions.keys().any(|name| name.as_str() == "containerd");
    Ok(HostDefaults {
        versions,
        configuration: Configuration {
            // A containerd that infrop does not care for keeps its own.
            containerd_config: has_containerd.then(|| containerd.config()),
            images,
            kernel_modules: Some(modules.into()),
            swap: Some(Swap::Off),
            sysctl: Some(
                [
                    ("net.bridge.bridge-nf-call-iptables".parse()?, "1".parse()?),
                    ("net.ipv4.ip_forward".parse()?, "1".parse()?),
                ]
                .into(),
            ),
            ..Configuration::default()
        },
        ..HostDefaults::default()
    })
}

impl Provider for StaticComputes {
    fn observe(&self, at_once: usize) -> LocalBoxFuture<'_, Result<Vec<Pool>, Error>> {
        Box::pin(async move {
            let looks =
                self.hosts().map(|(pool, host)| async move { (pool, host, self.standing(host).await) });
            let mut pools: BTreeMap<&PoolName, (Vec<Compute>, Vec<NodeName>)> =
                self.pools.keys().map(|pool| (pool, (Vec::new(), Vec::new()))).collect();
            for (pool, host, standing) in some_at_once(at_once, looks).await {
                let (computes, spares) = pools.entry(pool).or_default();
                let ownership = match standing {
                    Standing::Free => {
                        spares.push(host.name.clone());
                        continue;
                    }
                    Standing::Ours => Ownership::Ours,
                    Standing::Foreign(owner) => Ownership::Foreign(owner),
                    Standing::Unknown(why) => Ownership::Unknown(why),
                };
                computes.push(Self::compute(pool, host, ownership));
            }
            let pool = |(name, (computes, spares)): (&PoolName, (Vec<Compute>, Vec<NodeName>))| Pool {
                provider: self.provider.clone(),
                name: name.clone(),
                computes,
                spares: Spares::Listed(spares),
            };
            Ok(pools.into_iter().map(pool).collect())
        })
    }

    fn addresses(&self, pool: &PoolName) -> Option<BTreeSet<IpAddr>> {
        Some(self.pools.get(pool)?.iter().map(|host| host.address).collect())
    }

    fn create<'a>(
        &'a self,
        pool: &'a PoolName,
        name: &'a NodeName,
    ) -> LocalBoxFuture<'a, Result<Compute, Error>> {
        Box::pin(async move { self.claim(pool, name).await.map_err(self.error(format!("take {name}"))) })
    }

    fn delete<'a>(&'a self, compute: &'a Compute) -> LocalBoxFuture<'a, Result<(), Error>> {
        let name = &compute.name;
        Box::pin(async move { self.give_back(name).await.map_err(self.error(format!("give {name} back"))) })
    }

    fn erases(&self) -> bool {
        false
    }

    fn power<'a>(&'a self, compute: &'a Compute, _power: Power) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let why = anyhow::anyhow!("nobody told infrop how: use its power button or its BMC");
            Err(self.error(format!("switch {}", compute.name))(why))
        })
    }

    fn release(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn access(&self, compute: &Compute) -> Result<Access, Error> {
        let (_, host) = self.find(&compute.name).map_err(self.error(format!("reach {}", compute.name)))?;
        Ok(self.reach(host))
    }

    fn route(&self, _address: SocketAddr) -> LocalBoxFuture<'_, Result<Route, Error>> {
        Box::pin(async { Ok(Route::Endpoint) })
    }

    fn records<'a>(&'a self, pool: &'a PoolName) -> LocalBoxFuture<'a, Result<Vec<Box<dyn Record>>, Error>> {
        Box::pin(async move {
            // On every control plane that answers: two that work at once meet on at least one of them. Without any, one
            // on another host would be of no use: a control plane that is back next moment would know nothing of it.
            let hosts: Vec<&StaticHost> = self.pools.get(pool).into_iter().flatten().collect();
            let records = self.free_or_ours(&hosts).await.map_err(|why| {
                self.error("find a control plane host to write down who is at work".to_owned())(why)
            })?;
            let record = |host: &StaticHost| {
                let (connections, access) = (Arc::clone(&self.connections), self.reach(host));
                Box::new(HostRecord::new(&self.owner, host.name.clone(), access, connections))
                    as Box<dyn Record>
            };
            Ok(records.into_iter().map(record).collect())
        })
    }

    fn defaults(&self) -> &HostDefaults {
        &self.defaults
    }
}

/// Keeps a secret in a file that only we can read, for ssh.
pub fn write_key(directory: &Path, key: &secrecy::SecretString) -> std::io::Result<PathBuf> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};

    use secrecy::ExposeSecret as _;
    let path = directory.join("key");
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(key.expose_secret().trim_end().as_bytes())?;
    // ssh does not read a key without a last line's end.
    file.write_all(b"\n")?;
    Ok(path)
}
