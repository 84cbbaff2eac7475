//! Which Kubernetes version may follow which, by rule and not by a table of versions.

use crate::{KubernetesVersion, state::Reason};

/// A step that Kubernetes' version skew policy forbids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkewError {
    /// Backwards.
    #[error(
        "Kubernetes does not go back from {from} to {to}: the skew rule is that versions only rise, because stored \
         objects and configuration are not converted back"
    )]
    Downgrade {
        /// What the host has.
        from: KubernetesVersion,
        /// What was asked for.
        to: KubernetesVersion,
    },
    /// Too far.
    #[error("Kubernetes does not go from {from} to {to}: the skew rule is one minor version at a time")]
    MinorSkipped {
        /// What the host has.
        from: KubernetesVersion,
        /// What was asked for.
        to: KubernetesVersion,
    },
    /// Ahead of the control plane.
    #[error(
        "a kubelet {to} may not run with a control plane {control_plane}: the skew rule is that a kubelet is never \
         newer than the API server"
    )]
    NewerThanApiServer {
        /// What was asked for.
        to: KubernetesVersion,
        /// What the cluster has.
        control_plane: KubernetesVersion,
    },
}

impl SkewError {
    /// The code people and programs see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Downgrade { .. } => Reason::SkewDowngrade,
            Self::MinorSkipped { .. } => Reason::SkewMinorSkipped,
            Self::NewerThanApiServer { .. } => Reason::SkewNewerThanApiServer,
        }
    }
}

/// Whether a joined host may go from one version to another.
pub fn check_step(from: &KubernetesVersion, to: &KubernetesVersion) -> Result<(), SkewError> {
    if to < from {
        return Err(SkewError::Downgrade { from: from.clone(), to: to.clone() });
    }
    if to.minor() > from.minor() + 1 {
        return Err(SkewError::MinorSkipped { from: from.clone(), to: to.clone() });
    }
    Ok(())
}

/// Whether a host that runs no API server may have this version beside this control plane.
pub fn check_worker(to: &KubernetesVersion, control_plane: &KubernetesVersion) -> Result<(), SkewError> {
    if to > control_plane {
        return Err(SkewError::NewerThanApiServer { to: to.clone(), control_plane: control_plane.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps() {
        let reason = |from: &str, to: &str| {
            check_step(&from.parse().unwrap(), &to.parse().unwrap()).map_err(|error| error.reason())
        };
        assert_eq!(reason("1.36.4", "1.36.4"), Ok(()));
        assert_eq!(reason("1.36.4", "1.36.9"), Ok(()));
        assert_eq!(reason("1.36.4", "1.37.0"), Ok(()));
        assert_eq!(reason("1.36.4", "1.38.0"), Err(Reason::SkewMinorSkipped));
        assert_eq!(reason("1.37.1", "1.36.4"), Err(Reason::SkewDowngrade));
        assert_eq!(reason("1.37.1", "1.37.0"), Err(Reason::SkewDowngrade));
        assert_eq!(reason("1.9.0", "1.10.0"), Ok(()));
    }

    #[test]
    fn a_worker_is_never_newer_than_the_control_plane() {
        let reason = |to: &str, control_plane: &str| {
            check_worker(&to.parse().unwrap(), &control_plane.parse().unwrap())
                .map_err(|error| error.reason())
        };
        assert_eq!(reason("1.37.1", "1.37.1"), Ok(()));
        assert_eq!(reason("1.36.4", "1.37.1"), Ok(()));
        assert_eq!(reason("1.37.1", "1.36.4"), Err(Reason::SkewNewerThanApiServer));
        assert_eq!(reason("1.37.2", "1.37.1"), Err(Reason::SkewNewerThanApiServer));
    }
}
