//! What infrop and node-agent must agree on. Pure: no runtime, no client, no clock, no files.

mod version;

pub use version::{KubernetesVersion, KubernetesVersionError};
