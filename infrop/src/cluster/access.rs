//! The administrator's way to the API.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use sha2::{Digest, Sha256};

use super::error::Error;

/// An API server that is there answers in a fraction of this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer is a list of Nodes.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Every API server's certificate has this name, whatever way leads there.
const SERVER_NAME: &str = "kubernetes";

/// How this computer comes to the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// As hosts do.
    Endpoint,
    /// Through a port of this computer.
    Port(u16),
}

/// A client that asks once, and hears a refusal at once.
///
/// kube asks up to 15 times more if the answer is 429, 503 or 504, which takes minutes. That is right for a server that
/// has too much to do, so other clients keep it; but 429 is also what a budget answers to an eviction, and that has to be
/// shown, and waited for with an eye on the pods.
#[derive(Clone)]
pub struct DirectClient(kube::Client);

impl std::fmt::Debug for DirectClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectClient").finish_non_exhaustive()
    }
}

impl DirectClient {
    /// For that server.
    pub fn new(mut config: kube::Config) -> Result<Self, Error> {
        config.default_retry = false;
        let client = kube::Client::try_from(config);
        client.map(Self).map_err(|error| Error::Kubeconfig(error.to_string()))
    }

    pub(super) fn get(&self) -> &kube::Client {
        &self.0
    }
}

/// Ways to speak to the API.
#[derive(Clone)]
pub struct Clients {
    /// For most things.
    pub client: kube::Client,
    /// For drains.
    pub direct: DirectClient,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").finish_non_exhaustive()
    }
}

impl Clients {
    /// With a kubeconfig of the user's; the usual one if none is named.
    pub async fn of_user(kubeconfig: Option<&std::path::Path>) -> Result<Self, Error> {
        let unusable = |error: &dyn std::fmt::Display| Error::Kubeconfig(error.to_string());
        let kubeconfig = match kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let kubeconfig = kubeconfig.map_err(|error| unusable(&error))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|error| unusable(&error))?;
        Self::new(config)
    }

    fn new(mut config: kube::Config) -> Result<Self, Error> {
        // Only the first call of the process installs it; all are equal.
        let _ = rustls::crypto::ring::default_provider().install_default();
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        let direct = DirectClient::new(config.clone())?;
        let client = kube::Client::try_from(config).map_err(|error| Error::Kubeconfig(error.to_string()))?;
        Ok(Self { client, direct })
    }
}

/// An administrator of the cluster.
#[derive(Clone)]
pub struct Access {
    /// Speak to the API.
    pub clients: Clients,
    /// For kubectl, with the way from this computer. Secret.
    pub kubeconfig: secrecy::SecretString,
    /// Of the cluster's CA, as kubeadm wants it.
    pub ca_hash: String,
}

impl std::ops::Deref for Access {
    type Target = Clients;

    fn deref(&self) -> &Clients {
        &self.clients
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("ca_hash", &self.ca_hash).finish_non_exhaustive()
    }
}

impl Access {
    /// With `admin.conf` of a control plane.
    pub async fn new(admin_conf: &str, route: &Route) -> Result<Self, Error> {
        let unusable = |error: &dyn std::fmt::Display| Error::Kubeconfig(error.to_string());
        let mut kubeconfig = Kubeconfig::from_yaml(admin_conf).map_err(|error| unusable(&error))?;
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            if let Route::Port(port) = route {
                cluster.server = Some(format!("https://127.0.0.1:{port}"));
            }
            cluster.tls_server_name = Some(SERVER_NAME.to_owned());
        }
        let text = serde_yaml::to_string(&kubeconfig).map_err(|error| unusable(&error))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|error| unusable(&error))?;
        let ca = config.root_cert.as_ref().and_then(|certificates| certificates.first());
        let ca_hash = hash(ca.ok_or_else(|| Error::Kubeconfig("it has no CA".to_owned()))?)?;
        Ok(Self { clients: Clients::new(config)?, kubeconfig: text.into(), ca_hash })
    }
}

/// The hash of a certificate's public key.
fn hash(der: &[u8]) -> Result<String, Error> {
    // kube gives DER; a PEM would be a change of kube's that must not pass unnoticed.
    let (_, certificate) = x509_parser::parse_x509_certificate(der)
        .map_err(|error| Error::Kubeconfig(format!("its CA is no certificate: {error}")))?;
    let digest = Sha256::digest(certificate.tbs_certificate.subject_pki.raw);
    Ok(format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}
