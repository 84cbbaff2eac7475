//! Secrets, read from where the document says they are. They are never part of an error.

use std::{ffi::OsString, path::Path};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use secrecy::SecretString;

use crate::desired::{SecretReference, SecretSource};

/// Reads a secret; a file is named as whoever reads it sees it.
pub async fn read(reference: &SecretReference) -> anyhow::Result<SecretString> {
    match reference {
        SecretReference::File(file) => of_file(file),
        SecretReference::Environment(variable) => of_environment(variable, std::env::var_os(variable)),
        SecretReference::Secret(source) => {
            // Only the first call of the process installs it; all are equal.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let client = kube::Client::try_default().await.with_context(|| cannot_read(source))?;
            of_cluster(client, source).await
        }
    }
}

fn of_file(file: &Path) -> anyhow::Result<SecretString> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read the secret in {}", file.display()))?;
    if text.trim().is_empty() {
        bail!("{} is empty; the document names it as a secret", file.display());
    }
    Ok(text.into())
}

fn of_environment(variable: &str, value: Option<OsString>) -> anyhow::Result<SecretString> {
    // One that is not text comes back as it is, and must not get into an error.
    match value.map(OsString::into_string) {
        Some(Ok(text)) if !text.trim().is_empty() => Ok(text.into()),
        Some(Err(_)) => {
            bail!("the environment variable {variable}, which the document names as a secret, is not text")
        }
        _ => bail!(
            "the environment variable {variable} is empty or not set; the document names it as a secret"
        ),
    }
}

fn cannot_read(source: &SecretSource) -> String {
    let SecretSource { namespace, name, key: _ } = source;
    format!("cannot read the Secret {namespace}/{name} of the cluster that KUBECONFIG leads to")
}

async fn of_cluster(client: kube::Client, source: &SecretSource) -> anyhow::Result<SecretString> {
    let SecretSource { namespace, name, key } = source;
    let secret = Api::<Secret>::namespaced(client, namespace).get(name).await;
    let secret = secret.with_context(|| cannot_read(source))?;
    let bytes = secret.data.and_then(|mut data| data.remove(key));
    let bytes = bytes.with_context(|| format!("the Secret {namespace}/{name} has no key {key}"))?;
    match String::from_utf8(bytes.0) {
        Ok(text) if text.trim().is_empty() => {
            bail!("the key {key} of the Secret {namespace}/{name} is empty")
        }
        Ok(text) => Ok(text.into()),
        // The error would hold the bytes.
        Err(_) => bail!("the key {key} of the Secret {namespace}/{name} is not text"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use secrecy::ExposeSecret as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// What must be in no error.
    const VALUE: &str = "hunter2";

    /// Either the secret, or an error that says this and never the secret.
    fn check(case: &str, read: anyhow::Result<SecretString>, expected: Result<&str, &str>) {
        match (read, expected) {
            (Ok(secret), Ok(expected)) => assert_eq!(secret.expose_secret(), expected, "{case}"),
            (Err(error), Err(expected)) => {
                for text in [format!("{error:#}"), format!("{error:?}"), format!("{error:#?}")] {
                    assert!(!text.contains(VALUE) && !text.contains("104, 117, 110"), "{case}: {text}");
                }
                let text = format!("{error:#}");
                assert!(text.contains(expected), "{case}: {text}");
            }
            (read, _) => panic!("{case}: {read:?}"),
        }
    }

    #[test]
    fn a_variable_has_to_be_set_and_hold_text() {
        let broken = [VALUE.as_bytes(), &[0xff]].concat();
        for (case, value, expected) in [
            ("set", Some(VALUE.into()), Ok(VALUE)),
            ("lines", Some("a\nb\n".into()), Ok("a\nb\n")),
            ("missing", None, Err("the environment variable KEY is empty or not set")),
            ("empty", Some("".into()), Err("the environment variable KEY is empty or not set")),
            ("blank", Some(" \n".into()), Err("the environment variable KEY is empty or not set")),
            (
                "bytes",
                Some(OsString::from_vec(broken)),
                Err("KEY, which the document names as a secret, is not text"),
            ),
        ] {
            check(case, of_environment("KEY", value), expected);
        }
    }

    #[tokio::test]
    async fn a_variable_is_looked_up_where_the_process_has_it() {
        let path = std::env::var("PATH").unwrap();
        check("PATH", read(&SecretReference::Environment("PATH".to_owned())).await, Ok(&path));
        let missing = SecretReference::Environment("INFROP_TEST_NOT_SET".to_owned());
        check("missing", read(&missing).await, Err("INFROP_TEST_NOT_SET is empty or not set"));
    }

    #[tokio::test]
    async fn a_file_has_to_be_there_and_hold_text() {
        let directory = tempfile::tempdir().unwrap();
        let broken = [VALUE.as_bytes(), &[0xff]].concat();
        for (case, content, expected) in [
            ("set", Some(VALUE.as_bytes()), Ok(VALUE)),
            ("missing", None, Err("missing: No such file")),
            ("empty", Some(&b""[..]), Err("empty is empty; the document names it as a secret")),
            ("blank", Some(b"\n"), Err("blank is empty; the document names it as a secret")),
            ("bytes", Some(&broken), Err("cannot read the secret in ")),
        ] {
            let file = directory.path().join(case);
            if let Some(content) = content {
                std::fs::write(&file, content).unwrap();
            }
            check(case, read(&SecretReference::File(file)).await, expected);
        }
    }

    /// A client of an API server that answers once, with this.
    async fn answering(status: &str, body: String) -> kube::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..read]);
            assert!(request.starts_with("GET /api/v1/namespaces/infrop/secrets/ssh HTTP/1.1"), "{request}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        kube::Client::try_from(config).unwrap()
    }

    #[tokio::test]
    async fn a_secret_of_the_cluster_has_to_have_the_key() {
        let source = SecretSource { namespace: "infrop".into(), name: "ssh".into(), key: "key".into() };
        let secret = |data: serde_json::Value| {
            let metadata = serde_json::json!({ "name": "ssh", "namespace": "infrop" });
            let kind = serde_json::json!("Secret");
            serde_json::json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data })
                .to_string()
        };
        let status = |code: u16, reason: &str| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
                "message": format!("secrets \"ssh\": {reason}"),
            })
            .to_string()
        };
        for (case, code, body, expected) in [
            ("there", "200 OK", secret(serde_json::json!({ "key": "aHVudGVyMg==" })), Ok(VALUE)),
            (
                "another key",
                "200 OK",
                secret(serde_json::json!({ "other": "aHVudGVyMg==" })),
                Err("the Secret infrop/ssh has no key key"),
            ),
            ("nothing in it", "200 OK", secret(serde_json::json!(null)), Err("has no key key")),
            (
                "empty",
                "200 OK",
                secret(serde_json::json!({ "key": "" })),
                Err("the key key of the Secret infrop/ssh is empty"),
            ),
            (
                "bytes",
                "200 OK",
                // hunter2 and a byte that is no text.
                secret(serde_json::json!({ "key": "aHVudGVyMv8=" })),
                Err("the key key of the Secret infrop/ssh is not text"),
            ),
            (
                "missing",
                "404 Not Found",
                status(404, "NotFound"),
                Err("cannot read the Secret infrop/ssh of the"),
            ),
            (
                "forbidden",
                "403 Forbidden",
                status(403, "Forbidden"),
                Err("cannot read the Secret infrop/ssh of the"),
            ),
        ] {
            check(case, of_cluster(answering(code, body).await, &source).await, expected);
        }
    }
}
