//! Observing the host: a few facts once for all software, then each software's version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::PathBuf,
};

use common::{
    KubernetesVersion,
    plan::Plan,
    software::{SoftwareName, SoftwareVersion},
    state::Reason,
};
use program::Program;
use serde::{Deserialize, Serialize};

use crate::{
    apt::Packages,
    contents::Contents,
    failure::Failure,
    host::Host,
    software::{self, Look, Observed},
};

/// A host with this file runs a control plane.
const API_SERVER_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";

/// One boot of the host: the kernel makes another for every boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(String);

impl BootId {
    /// A boot by its text.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The boot the host is in.
    pub fn of(host: &Host) -> Result<Self, Failure> {
        let text = host.read("/proc/sys/kernel/random/boot_id")?;
        let text =
            text.ok_or_else(|| Failure::new(Reason::ObservationFailed, "the kernel tells no boot id"))?;
        Ok(Self::new(&text))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is found out once per pass.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// All packages.
    pub packages: Packages,
    /// The services of software under care.
    pub services: BTreeMap<String, Service>,
    /// The container images; none if nobody asks for any, or containerd does not answer.
    pub images: Option<BTreeSet<String>>,
    /// The boot the host is in.
    pub boot: BootId,
    /// Whether the kubelet has a credential: the host is part of a cluster.
    pub joined: bool,
    /// Whether the host runs a control plane.
    pub control_plane: bool,
}

/// A service of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Service {
    /// What it does.
    pub state: ServiceState,
    /// Whether the program it runs was replaced on the disk since.
    pub old_program: bool,
}

/// What a service does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceState {
    /// Nobody started it, or it is not there.
    #[default]
    Inactive,
    /// It runs.
    Active,
    /// It comes or goes.
    Changing,
    /// It ended badly.
    Failed,
}

impl ServiceState {
    fn parse(text: &str) -> Self {
        match text {
            "active" => Self::Active,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            _ => Self::Changing,
        }
    }
}

impl Facts {
    /// Whether a service runs a program that was replaced.
    pub fn runs_old_program(&self, unit: &str) -> bool {
        self.services.get(unit).is_some_and(|service| service.old_program)
    }
}

/// The host at one moment.
#[derive(Debug, Clone, Default)]
pub struct HostState {
    /// The facts.
    pub facts: Facts,
    /// Each software's version, in the order of change.
    pub software: Vec<(SoftwareName, Observed)>,
    /// Contents that were delivered.
    pub contents: BTreeSet<(SoftwareName, SoftwareVersion)>,
}

impl HostState {
    /// A software's version.
    pub fn observed(&self, name: &str) -> Option<&Observed> {
        self.software.iter().find(|(known, _)| known.as_str() == name).map(|(_, observed)| observed)
    }

    /// A software's version if it is a Kubernetes version.
    pub fn kubernetes_version(&self, name: &str) -> Option<KubernetesVersion> {
        self.observed(name)?.version.as_ref()?.as_str().parse().ok()
    }
}

/// Looks at the host. `plan` is what is asked for, if anything is.
pub async fn observe(
    host: &Host,
    contents: &Contents,
    kubeconfig: &std::path::Path,
    plan: Option<&Plan>,
) -> Result<HostState, Failure> {
    let desired = |name: &SoftwareName| plan.and_then(|plan| plan.desired.get(name));
    let wants_images = plan.is_some_and(|plan| plan.desired.keys().any(|name| name.as_str() == "images"));
    let facts = Facts {
        packages: Packages::observe(host).await?,
        services: services(host).await?,
        // Without containerd there are none, and that is not this pass's failure.
        images: if wants_images { software::list_images(host).await.ok() } else { None },
        boot: BootId::of(host)?,
        joined: host.path(kubeconfig).exists(),
        control_plane: host.path(API_SERVER_MANIFEST).exists(),
    };
    let mut software = Vec::new();
    for one in software::ALL {
        let name = software::name_of(*one)?;
        let look = Look { host, facts: &facts, contents, desired: desired(&name) };
        let observed = one.observe(&look)?;
        software.push((name, observed));
    }
    Ok(HostState { facts, software, contents: contents.versions() })
}

/// The services of software under care, by one call.
async fn services(host: &Host) -> Result<BTreeMap<String, Service>, Failure> {
    let units = software::ALL.iter().filter_map(|software| software.unit());
    let program = Program::new("systemctl").args(["show", "--property=Id,ActiveState,MainPID"]).args(units);
    let text = host.insist(Reason::ObservationFailed, program).await?;
    Ok(parse_services(&text, |process| {
        let link = host.path(PathBuf::from("/proc").join(process).join("exe"));
        fs::read_link(link).is_ok_and(|program| program.to_string_lossy().ends_with(" (deleted)"))
    }))
}

fn parse_services(text: &str, old_program: impl Fn(&str) -> bool) -> BTreeMap<String, Service> {
    let mut services = BTreeMap::new();
    for block in text.split("\n\n") {
        let field = |name: &str| {
            block
                .lines()
                .find_map(|line| line.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
        };
        if let (Some(id), Some(state)) = (field("Id"), field("ActiveState")) {
            let process = field("MainPID").filter(|process| *process != "0");
            let service =
                Service { state: ServiceState::parse(state), old_program: process.is_some_and(&old_program) };
            services.insert(id.to_owned(), service);
        }
    }
    services
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    /// dpkg-query reads its whole database whatever it is asked for, so nobody asks for one package alone.
    #[tokio::test]
    async fn one_look_asks_dpkg_and_systemd_once_for_all_software() {
        let fake = FakeHost::new(|command| {
            let is_dpkg = command.starts_with("dpkg-query");
            Ok(if is_dpkg { "kubelet\t1.36.4-1.1\thi \nkubectl\t1.36.3-1.1\thi \n" } else { "" }.to_owned())
        });
        fake.write("/proc/sys/kernel/random/boot_id", "first\n");
        let kubeconfig = std::path::Path::new("/etc/kubernetes/kubelet.conf");
        let desired =
            software::ALL.iter().map(|one| (software::name_of(*one).unwrap(), "1.36.4".parse().unwrap()));
        let everything = Plan::new(desired.collect());
        for plan in [None, Some(&everything)] {
            let asked = fake.commands().len();
            let seen = observe(&fake.host, &Contents::default(), kubeconfig, plan).await.unwrap();
            let commands = &fake.commands()[asked..];
            let count =
                |program: &str| commands.iter().filter(|command| command.starts_with(program)).count();
            assert_eq!((count("dpkg-query"), count("systemctl")), (1, 1), "{commands:?}");
            for (name, version) in [("kubelet", "1.36.4"), ("kubectl", "1.36.3")] {
                assert_eq!(seen.kubernetes_version(name), version.parse().ok());
            }
        }
    }

    #[test]
    fn services_are_read_from_one_answer() {
        let text = "MainPID=12\nId=containerd.service\nActiveState=active\n\n\
            MainPID=0\nId=kubelet.service\nActiveState=activating\n\nMainPID=13\nId=x.service\nActiveState=active\n\n\
            MainPID=0\nId=y.service\nActiveState=inactive\n";
        let services = parse_services(text, |process| process == "12");
        assert_eq!(
            services["containerd.service"],
            Service { state: ServiceState::Active, old_program: true }
        );
        assert_eq!(
            services["kubelet.service"],
            Service { state: ServiceState::Changing, old_program: false }
        );
        assert_eq!(services["y.service"], Service::default());
        assert_eq!(services["x.service"], Service { state: ServiceState::Active, old_program: false });
    }
}
