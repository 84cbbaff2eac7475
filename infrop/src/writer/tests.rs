//! Who may write, with records in files.

use super::*;

fn record(directory: &tempfile::TempDir) -> Box<dyn Record> {
    Box::new(FileRecord::new(directory.path().join("writer.json")))
}

async fn acquire(directory: &tempfile::TempDir, who: &str, take_over: bool) -> Result<Holding, Error> {
    Holding::acquire(record(directory), who, take_over, &|_| ()).await
}

/// Writes what someone else would.
async fn plant(directory: &tempfile::TempDir, renewed: Timestamp) {
    let record = record(directory);
    let entry = Entry { holder: "other".into(), renewed, since: renewed };
    record.write(&record.read().await.unwrap(), &entry).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_comes_in_and_the_next_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let holding = acquire(&directory, "a", false).await.unwrap();
    holding.release().await;
    let mut holding = acquire(&directory, "b", false).await.unwrap();
    // A renewal whose end was not seen keeps nobody out.
    holding.seen.version = "older".into();
    holding.release().await;
    let started = Instant::now();
    acquire(&directory, "c", false).await.unwrap();
    assert!(started.elapsed() < LOOK);
}

#[tokio::test(start_paused = true)]
async fn who_renews_is_left_alone_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = acquire(&directory, "a", false).await.unwrap();
    let second = tokio::select! {
        lost = first.keep() => panic!("{lost}"),
        second = acquire(&directory, "b", false) => second,
    };
    let error = second.unwrap_err().to_string();
    assert!(error.starts_with("a is at work since") && error.contains("--take-over"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_renew_is_waited_for_and_then_replaced() {
    let directory = tempfile::tempdir().unwrap();
    plant(&directory, Timestamp::now()).await;
    let started = Instant::now();
    acquire(&directory, "b", false).await.unwrap();
    assert!(started.elapsed() >= DURATION && started.elapsed() < DURATION * 2);
}

#[tokio::test(start_paused = true)]
async fn an_old_record_is_nobodys() {
    let directory = tempfile::tempdir().unwrap();
    plant(&directory, Timestamp::now() - ANCIENT - SignedDuration::from_secs(1)).await;
    let started = Instant::now();
    acquire(&directory, "b", false).await.unwrap();
    assert!(started.elapsed() < LOOK);
}

#[tokio::test(start_paused = true)]
async fn who_is_replaced_by_force_learns_it_at_the_next_renewal() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = acquire(&directory, "a", false).await.unwrap();
    let _second = acquire(&directory, "b", true).await.unwrap();
    let lost = first.keep().await.to_string();
    assert!(lost.starts_with("b is at work"), "{lost}");
    // Its end does not let others in.
    first.release().await;
    let seen = record(&directory).read().await.unwrap();
    assert_eq!(seen.entry.unwrap().holder, "b");
}

#[tokio::test(start_paused = true)]
async fn of_two_at_once_one_comes_in() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (record(&directory), record(&directory));
    let (seen_a, seen_b) = (a.read().await.unwrap(), b.read().await.unwrap());
    let now = Timestamp::now();
    let entry = |holder: &str| Entry { holder: holder.into(), renewed: now, since: now };
    assert!(a.write(&seen_a, &entry("a")).await.unwrap().is_some());
    assert!(b.write(&seen_b, &entry("b")).await.unwrap().is_none());
}

#[test]
fn no_two_processes_have_the_same_identity() {
    assert_ne!(identity().unwrap(), identity().unwrap());
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_however_often_it_is_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = acquire(&directory, "a", false).await.unwrap();
    let before = record(&directory).read().await.unwrap();
    for _ in 0..20 {
        let interrupted = tokio::time::timeout(RENEWAL / 4, first.keep()).await;
        assert!(interrupted.is_err());
    }
    assert_ne!(record(&directory).read().await.unwrap(), before);
    // A write whose end was not seen does not look like someone else's.
    first.seen.version = "older".into();
    assert!(first.renew().await.unwrap().is_none());
    assert!(first.renew().await.unwrap().is_none());
}
