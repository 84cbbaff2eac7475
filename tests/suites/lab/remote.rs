//! infrop's connection to a host: what scripts are given, what they say, how they end.

use std::time::{Duration, Instant};

use anyhow::ensure;
use infrop::bootstrap::{
    Error,
    ssh::{Access, Connections, Remote},
};
use tests::lab::TestLab;

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn scripts_are_run() -> anyhow::Result<()> {
    TestLab::with("remote", &["a"], async |lab| {
        let access =
            Access { destination: "a".to_owned(), config: Some(lab.lab().ssh_config()), ..Access::default() };
        let connections = Connections::new()?;
        let remote = connections.get(&"a".parse()?, &access).await?;
        what_they_say(&remote).await?;
        how_they_end(&remote).await?;
        // Many at once share the connection.
        let runs = (0..8).map(|number| {
            let remote = &remote;
            async move { remote.run("count", LIMIT, &format!("sleep 0.2; echo {number}")).await }
        });
        let said = futures::future::try_join_all(runs).await?;
        ensure!(said == (0..8).map(|number| format!("{number}\n")).collect::<Vec<_>>(), "{said:?}");
        Ok(())
    })
    .await
}

async fn what_they_say(remote: &Remote) -> anyhow::Result<()> {
    // More than any pipe holds, there and back.
    let much = "0123456789abcdef".repeat(1 << 18);
    let back = remote.run_with("echo", LIMIT, "cat; echo not this >&2", much.as_bytes()).await?;
    ensure!(back == much, "{} of {} bytes came back", back.len(), much.len());
    // One that does not read it is not held up by it.
    let said = remote.run_with("ignore stdin", LIMIT, "echo done", much.as_bytes()).await?;
    ensure!(said == "done\n", "{said:?}");
    remote.write("/root/some/file", 0o640, b"text").await?;
    let said = remote.run("look", LIMIT, "stat -c %a /root/some/file; cat /root/some/file").await?;
    ensure!(said == "640\ntext", "{said:?}");
    Ok(())
}

async fn how_they_end(remote: &Remote) -> anyhow::Result<()> {
    // A program that is not there is the script's fault, not the connection's, which others would try again.
    for (script, code, why) in [
        ("echo why >&2; exit 3", 3, "why"),
        ("no-such-program", 127, "no-such-program"),
        ("false | true", 1, ""),
    ] {
        match remote.run("try", LIMIT, script).await {
            Err(Error::Script { code: found, stderr, .. }) => {
                ensure!(found == Some(code) && stderr.contains(why), "{script}: {found:?} {stderr}");
            }
            other => anyhow::bail!("{script}: {other:?}"),
        }
    }
    let started = Instant::now();
    let late = remote.run("sleep", Duration::from_millis(300), "sleep 60").await;
    ensure!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    ensure!(started.elapsed() < LIMIT, "the limit came late");
    // Who was given up does not hold up others.
    ensure!(remote.run("go on", LIMIT, "echo on").await? == "on\n");
    Ok(())
}
