//! Whether a plan can be tried at all.

use common::{
    KubernetesVersion,
    plan::Plan,
    skew::{self, SkewError},
    state::{Phase, Reason},
};

use super::Snapshot;
use crate::software::{self, KUBERNETES};

/// Packages whose version is that of Kubernetes.
const KUBERNETES_PACKAGES: [&str; 3] = ["kubeadm", "kubelet", "kubectl"];

/// A plan that cannot be tried, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) phase: Phase,
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Refusal {
    fn new(reason: Reason, message: String) -> Self {
        Self { phase: Phase::Refused, reason, message }
    }
}

impl From<SkewError> for Refusal {
    fn from(error: SkewError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

/// Whether a plan can be tried on this host.
pub(super) fn check(snapshot: &Snapshot<'_>, plan: &Plan) -> Result<(), Refusal> {
    let Snapshot { host, .. } = snapshot;
    for (name, version) in &plan.desired {
        let Some(software) = software::find(name) else {
            let message = format!("this node-agent does not know the software {name}");
            return Err(Refusal::new(Reason::UnknownSoftware, message));
        };
        let differs = host.observed(name.as_str()).is_none_or(|observed| observed.needs_change(version));
        if software.has_contents() && differs && !host.contents.contains(&(name.clone(), version.clone())) {
            let message = format!("the content {version} of {name} was not delivered to this host");
            return Err(Refusal::new(Reason::ContentMissing, message));
        }
    }
    check_kubernetes(snapshot, plan)
}

/// The rules of Kubernetes' version skew.
fn check_kubernetes(snapshot: &Snapshot<'_>, plan: &Plan) -> Result<(), Refusal> {
    let Snapshot { host, cluster, .. } = snapshot;
    let mut target: Option<KubernetesVersion> = None;
    for (name, version) in &plan.desired {
        if !KUBERNETES_PACKAGES.contains(&name.as_str()) && name.as_str() != KUBERNETES {
            continue;
        }
        let text = version.as_str();
        let version: KubernetesVersion = text
            .parse()
            .map_err(|error| Refusal::new(Reason::InvalidAnnotation, format!("{name}: {error}")))?;
        if version.to_string() != text {
            // Versions are compared as text, here and at infrop.
            let message = format!("{name}: write {version} instead of {text}");
            return Err(Refusal::new(Reason::InvalidAnnotation, message));
        }
        match &target {
            Some(other) if *other != version => {
                let message = format!("{name} is to be {version} and other parts of Kubernetes {other}");
                return Err(Refusal::new(Reason::SkewMixedVersions, message));
            }
            _ => target = Some(version),
        }
    }
    let Some(target) = target else { return Ok(()) };
    if !host.facts.joined {
        return Ok(());
    }
    for name in [KUBERNETES, "kubelet"] {
        if let Some(from) = host.kubernetes_version(name) {
            skew::check_step(&from, &target)?;
        }
    }
    let is_there = |name: &str| host.kubernetes_version(name).as_ref() == Some(&target);
    if is_there(KUBERNETES) && is_there("kubelet") {
        return Ok(());
    }
    // A control plane may run ahead of the cluster only if its API server goes first, which is kubeadm's part.
    let raises_api_server = host.facts.control_plane
        && plan.desired.keys().any(|name| ["kubeadm", KUBERNETES].contains(&name.as_str()));
    if host.facts.control_plane
        && !raises_api_server
        && let Some(own) = host.kubernetes_version(KUBERNETES)
    {
        skew::check_worker(&target, &own)?;
    }
    match cluster {
        Some(cluster) if raises_api_server => Ok(skew::check_step(cluster, &target)?),
        Some(cluster) => Ok(skew::check_worker(&target, cluster)?),
        // kubeadm has done its part of this version, so the cluster was asked then.
        None if is_there(KUBERNETES) => Ok(()),
        None => Err(Refusal {
            phase: Phase::Waiting,
            reason: Reason::ApiUnreachable,
            message: "the cluster's kubeadm-config, which says what version may come next, cannot be read"
                .to_owned(),
        }),
    }
}
