//! Secrets, read from where the document says they are. They are never part of an error.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use secrecy::SecretString;

use crate::desired::{SecretReference, SecretSource};

/// Reads a secret; a file is named as whoever reads it sees it.
pub async fn read(reference: &SecretReference) -> anyhow::Result<SecretString> {
    match reference {
        SecretReference::File(file) => {
            let text = std::fs::read_to_string(file);
            Ok(text.with_context(|| format!("cannot read the secret in {}", file.display()))?.into())
        }
        SecretReference::Environment(variable) => match std::env::var(variable) {
            Ok(text) if !text.is_empty() => Ok(text.into()),
            _ => bail!(
                "the environment variable {variable} is empty or not set; the document names it as a secret"
            ),
        },
        SecretReference::Secret(source) => of_cluster(source).await,
    }
}

async fn of_cluster(source: &SecretSource) -> anyhow::Result<SecretString> {
    let SecretSource { namespace, name, key } = source;
    let what =
        || format!("cannot read the Secret {namespace}/{name} of the cluster that KUBECONFIG leads to");
    // Only the first call of the process installs it; all are equal.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = kube::Client::try_default().await.with_context(what)?;
    let secret = Api::<Secret>::namespaced(client, namespace).get(name).await.with_context(what)?;
    let bytes = secret.data.and_then(|mut data| data.remove(key));
    let bytes = bytes.with_context(|| format!("the Secret {namespace}/{name} has no key {key}"))?;
    let text = String::from_utf8(bytes.0);
    Ok(text.with_context(|| format!("the key {key} of the Secret {namespace}/{name} is not text"))?.into())
}
