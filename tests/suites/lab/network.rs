//! The network of hosts can be cut, slowed and made lossy.

use std::time::Duration;

use anyhow::{Context, ensure};
use tests::{
    faults::{Faults, Party},
    lab::{TestLab, host},
};

/// Whether any of some packets from a host to another is answered.
async fn reaches(lab: &TestLab, from: &str, to: &str) -> bool {
    lab.run(from, &format!("ping -c 3 -i 0.3 -W 2 {to}")).await.is_ok()
}

pub(super) async fn cut_and_heal() -> anyhow::Result<()> {
    TestLab::with("cuts", &["a", "b", "c"], async |lab| {
        let faults = Faults::new(lab.lab()).await?;
        let (a, b) = (Party::host("a")?, Party::host("b")?);
        ensure!(reaches(lab, "a", "b").await);
        faults.cut(a.clone(), b.clone()).await?;
        ensure!(
            !reaches(lab, "a", "b").await && !reaches(lab, "b", "a").await,
            "the cut lets packets through"
        );
        ensure!(reaches(lab, "a", "c").await && reaches(lab, "c", "b").await, "the cut cuts too much");
        faults.heal(&b, &a).await?;
        ensure!(reaches(lab, "a", "b").await && reaches(lab, "b", "a").await, "the cut did not heal");

        // From this computer: ssh does not come in, hosts still reach each other.
        lab.run("a", "systemd-run --quiet --unit=pinger ping -i 0.2 b").await?;
        faults.cut(a.clone(), Party::Outside).await?;
        let attempt = lab.lab().ssh(&host("a")?).arg("true").timeout(Duration::from_secs(3)).run().await;
        ensure!(attempt.is_err(), "the cut host answers");
        faults.heal(&a, &Party::Outside).await?;
        let answers = lab.run("a", "journalctl --unit pinger --output cat | grep -c 'bytes from'").await?;
        ensure!(answers.trim().parse::<u32>()? >= 10, "the hosts lost each other: {answers}");
        Ok(())
    })
    .await
}

/// The shortest round trip in milliseconds, and how many of the packets came back. The shortest, because a
/// busy computer makes others longer.
async fn measure(lab: &TestLab, count: u32) -> anyhow::Result<(f64, u32)> {
    let text = lab.run("a", &format!("ping -q -i 0.01 -c {count} -W 1 b || true")).await?;
    let received = text.split(", ").find_map(|part| part.strip_suffix(" received"));
    let shortest =
        text.lines().last().and_then(|line| line.split(" = ").nth(1)?.split('/').next()).unwrap_or("0");
    Ok((shortest.parse()?, received.context("ping counts")?.parse()?))
}

pub(super) async fn slow_and_lossy() -> anyhow::Result<()> {
    TestLab::with("slow", &["a", "b"], async |lab| {
        let faults = Faults::new(lab.lab()).await?;
        let b = host("b")?;
        let (fast, received) = measure(lab, 50).await?;
        ensure!(received == 50 && fast < 40.0, "{received} of 50 in {fast} ms");

        let delay = faults.delay(&b, Duration::from_millis(50)).await?;
        let (slow, received) = measure(lab, 50).await?;
        ensure!(received == 50 && (100.0..160.0).contains(&slow), "{received} of 50 in {slow} ms");
        // A cut holds for a delayed host, too.
        let (one, two) = (Party::host("a")?, Party::host("b")?);
        faults.cut(one.clone(), two.clone()).await?;
        ensure!(!reaches(lab, "a", "b").await);
        faults.heal(&one, &two).await?;
        delay.end().await?;
        let (fast, received) = measure(lab, 50).await?;
        ensure!(received == 50 && fast < 40.0, "{received} of 50 in {fast} ms");

        // Each packet passes twice: a quarter comes back. The bounds are five deviations wide.
        faults.lose(&b, 50).await?;
        let (_, received) = measure(lab, 400).await?;
        ensure!((57..=143).contains(&received), "{received} of 400 came back");
        faults.lose(&b, 0).await?;
        ensure!(measure(lab, 50).await?.1 == 50);
        Ok(())
    })
    .await
}
