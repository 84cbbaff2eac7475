//! What hosts have in the document's bundle, told by one of them.

use std::path::PathBuf;

use anyhow::bail;
use common::{
    KubernetesVersion,
    metadata::{NodeName, Template},
};
use futures::{Stream, StreamExt};
use images::kubernetes::Manifest;

use super::SHORT;
use crate::bootstrap::{
    host::{OWNER, Owner},
    ssh::Remote,
};

/// What a host said of its bundle.
#[derive(Debug)]
pub(super) enum Answer<T> {
    /// This.
    Told(T),
    /// It answers, and cannot tell.
    Failed(String),
    /// It does not answer, or is nobody we would ask: it says so by itself elsewhere.
    Silent,
}

/// The first thing that is told; what others fail at is no matter then. None if nobody answers, and an error with every
/// reason if some do and none of them can tell.
pub(super) async fn first_told<T>(
    answers: impl Stream<Item = (NodeName, Answer<T>)>,
) -> anyhow::Result<Option<T>> {
    let mut answers = std::pin::pin!(answers);
    let mut reasons = Vec::new();
    while let Some((name, answer)) = answers.next().await {
        match answer {
            Answer::Told(told) => return Ok(Some(told)),
            Answer::Failed(why) => reasons.push((name, why)),
            Answer::Silent => {}
        }
    }
    if reasons.is_empty() {
        return Ok(None);
    }
    reasons.sort();
    let reasons: Vec<String> = reasons.into_iter().map(|(_, why)| why).collect();
    bail!("no host can tell what is in its bundle: {}", reasons.join("; "))
}

/// Where hosts have the bundle of a version.
pub(super) fn directory(template: Option<&Template>, version: &KubernetesVersion) -> Option<PathBuf> {
    template.and_then(|template| template.render(Some(version))).map(PathBuf::from)
}

/// Asks a host for the bundle in `file`. What somebody else's host has there says nothing of ours.
pub(super) async fn ask(remote: &Remote, owner: &str, file: &std::path::Path) -> Answer<Manifest> {
    let script =
        format!("if test -e {OWNER}; then tr -d '\\n' < {OWNER}; fi\necho\ncat '{}'", file.display());
    match remote.run("show its bundle", SHORT, &script).await {
        Ok(text) => read(remote.host(), owner, file, &text),
        Err(error) if error.is_away() => Answer::Silent,
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Its mark of ownership in the first line, then the manifest.
fn read(host: &NodeName, owner: &str, file: &std::path::Path, text: &str) -> Answer<Manifest> {
    let (mark, manifest) = text.split_once('\n').unwrap_or_default();
    let foreign =
        serde_json::from_str(mark).is_ok_and(|Owner { infrastructure }: Owner| infrastructure != owner);
    if foreign {
        return Answer::Silent;
    }
    match serde_json::from_str(manifest) {
        Ok(manifest) => Answer::Told(manifest),
        Err(error) => Answer::Failed(format!("{host}: {} is damaged: {error}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use futures::stream;
    use tokio::time::{Instant, sleep};

    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn failed(why: &str) -> Answer<u8> {
        Answer::Failed(why.to_owned())
    }

    #[tokio::test]
    async fn one_host_that_can_tell_is_enough() {
        for (case, answers, expected) in [
            ("the first cannot", vec![("a", failed("a has none")), ("b", Answer::Told(2))], Some(2)),
            ("the first is away", vec![("a", Answer::Silent), ("b", Answer::Told(2))], Some(2)),
            ("nobody answers", vec![("a", Answer::Silent), ("b", Answer::Silent)], None),
            ("nobody is there", vec![], None),
        ] {
            let answers = answers.into_iter().map(|(host, answer)| (name(host), answer));
            assert_eq!(first_told(stream::iter(answers)).await.unwrap(), expected, "{case}");
        }
        let answers = [("b", failed("b: no")), ("c", Answer::Silent), ("a", failed("a has none"))];
        let answers = answers.map(|(host, answer)| (name(host), answer));
        let error = first_told(stream::iter(answers)).await.unwrap_err().to_string();
        assert_eq!(error, "no host can tell what is in its bundle: a has none; b: no");
    }

    #[tokio::test(start_paused = true)]
    async fn dead_hosts_are_not_waited_for_one_after_the_other() {
        let started = Instant::now();
        let looks = (0..40).map(|number| async move {
            let host = name(&format!("h{number}"));
            if number == 39 {
                return (host, Answer::Told(number));
            }
            sleep(Duration::from_secs(10)).await;
            (host, Answer::Silent)
        });
        let told = first_told(stream::iter(looks).buffer_unordered(super::super::AT_ONCE)).await.unwrap();
        assert_eq!(told, Some(39));
        assert!(started.elapsed() <= Duration::from_secs(10), "{:?}", started.elapsed());
    }

    #[test]
    fn the_bundle_of_somebody_elses_host_is_not_ours() {
        let file = Path::new("/b/bundle.json");
        let read = |text: &str| read(&name("a"), "site", file, text);
        assert!(matches!(read("{\"infrastructure\":\"other\"}\n{}"), Answer::Silent));
        for text in ["{\"infrastructure\":\"site\"}\n{", "\n{", ""] {
            let Answer::Failed(why) = read(text) else { panic!("{text} was read") };
            assert!(why.starts_with("a: /b/bundle.json is damaged: "), "{why}");
        }
    }
}
