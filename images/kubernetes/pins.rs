//! The Kubernetes versions whose sources are pinned, checksum by checksum, in this project.

use super::component::Release;

/// The pinned versions, oldest first. Another one is asked for by number; its sources are then pinned by
/// the checksum database that Go consults.
pub const PINNED: [&str; 2] = ["1.36.4", "1.37.1"];

/// The files of a Go module that requires the sources of a release and nothing else. To pin another version,
/// let `infrop bundle build` resolve it once and keep the go.mod and go.sum it works with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    pub(crate) go_mod: &'static str,
    pub(crate) go_sum: &'static str,
}

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(($name, Module {
            go_mod: include_str!(concat!("modules/", $name, "/go.mod")),
            go_sum: include_str!(concat!("modules/", $name, "/go.sum")),
        })),*]
    };
}

const MODULES: &[(&str, Module)] = modules![
    "kubernetes-1.36.4",
    "kubernetes-1.37.1",
    "etcd-3.6.8",
    "etcd-3.7.0",
    "coredns-1.14.2",
    "coredns-1.14.6",
    "containerd-2.3.3",
    "containerd-2.4.2",
];

/// The pinned module of a release, if there is one.
pub(crate) fn module(release: &Release) -> Option<&'static Module> {
    let wanted = format!("{}-{}", release.component.name(), release.version);
    MODULES.iter().find_map(|(name, module)| (*name == wanted).then_some(module))
}

/// All pinned text, as input of the bundle's identity.
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    MODULES.iter().flat_map(|(name, module)| [*name, module.go_mod, module.go_sum])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::component::{Component, containerd_for};

    #[test]
    fn every_pinned_version_has_its_kubernetes_and_containerd() {
        for version in PINNED {
            let containerd = containerd_for(&version.parse().unwrap());
            assert!(module(&Release::new(Component::Kubernetes, version)).is_some());
            assert!(module(&Release::new(Component::Containerd, containerd)).is_some());
        }
        assert!(module(&Release::new(Component::Kubernetes, "1.35.8")).is_none());
    }

    #[test]
    fn a_pinned_module_requires_what_is_built_from_it() {
        for (name, pinned) in MODULES {
            let (component, version) = name.split_once('-').unwrap();
            let component = Component::ALL.into_iter().find(|c| c.name() == component).unwrap();
            for required in component.modules() {
                assert!(pinned.go_mod.contains(&format!("{required} v{version}\n")), "{name}: {required}");
                assert!(pinned.go_sum.contains(&format!("{required} v{version} h1:")), "{name}: {required}");
            }
        }
    }
}
