//! The software under care.
//!
//! Adding one is a file here with its `SOFTWARE`, and a line in `common::catalogue`.

mod config_file;
mod package;

use std::fmt;

use common::{
    KubernetesVersion,
    catalogue::{self, Source},
    disruption::Disruption,
    metadata::Configuration,
    plan::Plan,
    software::{SoftwareName, SoftwareVersion},
    state::Reason,
};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    apt::Sources,
    config::Kubeadm,
    contents::Contents,
    failure::Failure,
    host::Host,
    node::Cluster,
    observe::{Facts, ServiceState},
};

pub(crate) use self::images::list as list_images;
pub use self::kubernetes::NAME as KUBERNETES;
pub(crate) use self::kubernetes::api_server_port;

/// Makes a module of each software, and of their `SOFTWARE` the list of all.
macro_rules! modules {
    ($($(#[$attribute:meta])* $module:ident: $disruption:ident, $source:ident $(($content:ty))?;)*) => {
        $(mod $module;)*

        /// All software, in the order in which a plan changes it.
        pub const ALL: &[&dyn Software] = &[$(&$module::SOFTWARE,)*];
    };
}

common::for_every_software!(modules);

/// A software under care.
pub trait Software: Sync + fmt::Debug {
    /// Its name in annotations.
    fn name(&self) -> &'static str;

    /// What changing it does to the pods of the host.
    fn disruption(&self) -> Disruption {
        Disruption::of(self.name())
    }

    /// Whether its versions are hashes of contents, which must have been delivered.
    fn has_contents(&self) -> bool {
        catalogue::find(self.name()).is_some_and(|entry| entry.source == Source::Content)
    }

    /// Its service, which must run the installed program.
    fn unit(&self) -> Option<&'static str> {
        None
    }

    /// The version it has, as verified on the host.
    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure>;

    /// Whether it can be changed now, as far as others have to answer first. Asked before anything stops for it.
    fn can_begin(&self, _: &Task<'_>, _: &SoftwareVersion) -> Result<(), Failure> {
        Ok(())
    }

    /// Brings it to a version. Called again after a crash at any point, it finishes the work.
    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>>;
}

/// What software looks at.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// The host.
    pub host: &'a Host,
    /// What was found out once for all.
    pub facts: &'a Facts,
    /// What was delivered.
    pub contents: &'a Contents,
    /// What is wanted, where the version cannot be read off the host alone.
    pub desired: Option<&'a SoftwareVersion>,
}

/// What software works with.
#[derive(Debug, Clone)]
pub struct Task<'a> {
    /// The host.
    pub host: &'a Host,
    /// What was delivered.
    pub contents: &'a Contents,
    /// The plan it is part of.
    pub plan: &'a Plan,
    /// The facts before the change.
    pub facts: &'a Facts,
    /// How kubeadm is called here.
    pub kubeadm: &'a Kubeadm,
    /// What the cluster's kubeadm-config says, if it could be read.
    pub cluster: Option<&'a Cluster>,
}

/// Stands on the disk from before files of a service change until the service has read them.
fn unread_mark(software: &dyn Software) -> String {
    format!("/var/lib/node-agent/unread/{}", software.name())
}

impl Look<'_> {
    /// Whether a service has yet to read what changed.
    fn is_unread(&self, software: &dyn Software) -> bool {
        self.host.path(unread_mark(software)).exists()
    }
}

impl Task<'_> {
    /// Notes that a service has yet to read what is about to change: a crash before it did is then seen.
    fn mark_unread(&self, software: &dyn Software) -> Result<(), Failure> {
        self.host.write(unread_mark(software), "", 0o600)
    }

    /// Notes that the service has read it.
    fn mark_read(&self, software: &dyn Software) -> Result<(), Failure> {
        self.host.remove(unread_mark(software))
    }

    /// Where packages of the plan come from.
    pub fn sources(&self) -> Sources<'_> {
        let kubernetes = kubernetes_of(self.plan);
        Sources { repositories: &self.contents.repositories, kubernetes, plan: self.plan.id() }
    }

    /// Whether a service was meant to run before the change.
    fn runs(&self, unit: &str) -> bool {
        self.facts.services.get(unit).is_some_and(|service| service.state != ServiceState::Inactive)
    }

    /// Has a service take up what changed, if it is meant to run; one that nobody started stays as it is.
    async fn refresh(&self, unit: &str, reloads: bool) -> Result<(), Failure> {
        if !self.runs(unit) {
            return Ok(());
        }
        let verb = if reloads { "reload-or-restart" } else { "restart" };
        self.host.systemctl(&[verb, unit]).await
    }

    /// The delivered content of a software in a version.
    fn content<T>(
        &self,
        software: &dyn Software,
        version: &SoftwareVersion,
        pick: impl Fn(&Configuration) -> Option<T>,
    ) -> Result<T, Failure> {
        let name = name_of(software)?;
        self.contents.find(&name, version).and_then(pick).ok_or_else(|| {
            let message = format!("the content {version} of {name} was not delivered to this host");
            Failure::new(Reason::ContentMissing, message)
        })
    }
}

/// The Kubernetes version a plan is for, if it is for one.
pub fn kubernetes_of(plan: &Plan) -> Option<KubernetesVersion> {
    let version = |name: &str| {
        plan.desired.iter().find(|(key, _)| key.as_str() == name).map(|(_, version)| version.as_str().parse())
    };
    [KUBERNETES, kubeadm::SOFTWARE.name, kubelet::SOFTWARE.name, kubectl::SOFTWARE.name]
        .into_iter()
        .find_map(|name| version(name)?.ok())
}

/// The version a software has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// What runs now; none if it is not there, or not as anyone asked for.
    pub version: Option<SoftwareVersion>,
    /// What runs after the next boot; differs only if a reboot is due.
    pub after_reboot: Option<SoftwareVersion>,
    /// Whether its service still runs what was before.
    pub stale: bool,
}

impl Observed {
    /// A software whose version needs no reboot.
    pub fn now(version: Option<SoftwareVersion>) -> Self {
        Self { after_reboot: version.clone(), version, stale: false }
    }

    /// Whether something has to be done to reach a version.
    pub fn needs_change(&self, desired: &SoftwareVersion) -> bool {
        self.after_reboot.as_ref() != Some(desired) || self.stale
    }

    /// Whether only a reboot is missing.
    pub fn needs_reboot(&self, desired: &SoftwareVersion) -> bool {
        !self.needs_change(desired) && self.version.as_ref() != Some(desired)
    }
}

/// A software by name.
pub fn find(name: &SoftwareName) -> Option<&'static dyn Software> {
    ALL.iter().copied().find(|software| software.name() == name.as_str())
}

/// The name as a type; every name in [`ALL`] is one, as a test shows.
pub fn name_of(software: &dyn Software) -> Result<SoftwareName, Failure> {
    software.name().parse().map_err(|error| Failure::of(Reason::UnknownSoftware, &error))
}

/// The version of a content on the host.
fn version_of_content(content: &impl Serialize) -> Result<SoftwareVersion, Failure> {
    SoftwareVersion::of_content(content).map_err(|error| Failure::of(Reason::ObservationFailed, &error))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::host::fake::FakeHost;

    /// A software on a fake host.
    pub(crate) struct Bench {
        pub(crate) fake: FakeHost,
        pub(crate) facts: Facts,
        pub(crate) contents: Contents,
        pub(crate) plan: Plan,
        pub(crate) cluster: Option<Cluster>,
        kubeadm: Kubeadm,
    }

    impl Bench {
        pub(crate) fn new(fake: FakeHost) -> Self {
            Self {
                fake,
                facts: Facts::default(),
                contents: Contents::default(),
                plan: Plan::default(),
                cluster: None,
                kubeadm: Kubeadm::default(),
            }
        }

        /// With a service that runs.
        pub(crate) fn start(&mut self, unit: &str) {
            let service = crate::observe::Service { state: ServiceState::Active, old_program: false };
            self.facts.services.insert(unit.to_owned(), service);
        }

        /// With a content delivered; gives its version.
        pub(crate) fn deliver(
            &mut self,
            software: &dyn Software,
            configuration: Configuration,
        ) -> SoftwareVersion {
            let versions = configuration.versions().unwrap();
            self.contents = Contents::new(None, vec![configuration]);
            versions[&name_of(software).unwrap()].clone()
        }

        pub(crate) fn observe(&self, software: &dyn Software) -> Observed {
            self.observe_wanting(software, None)
        }

        pub(crate) fn observe_wanting(
            &self,
            software: &dyn Software,
            desired: Option<&SoftwareVersion>,
        ) -> Observed {
            let look = Look { host: &self.fake.host, facts: &self.facts, contents: &self.contents, desired };
            software.observe(&look).unwrap()
        }

        pub(crate) async fn ensure(
            &self,
            software: &dyn Software,
            version: &SoftwareVersion,
        ) -> Result<(), Failure> {
            software.ensure(&self.task(), version).await
        }

        pub(crate) fn task(&self) -> Task<'_> {
            Task {
                host: &self.fake.host,
                contents: &self.contents,
                plan: &self.plan,
                facts: &self.facts,
                kubeadm: &self.kubeadm,
                cluster: self.cluster.as_ref(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_the_name_of_its_line() {
        let names: Vec<&str> = ALL.iter().map(|one| one.name()).collect();
        let lines: Vec<String> = catalogue::ENTRIES.iter().map(catalogue::Entry::name).collect();
        assert_eq!(names, lines);
    }
}
