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

/// A record in a file that can be out of reach, with a host's patience.
#[derive(Debug)]
struct Away {
    file: FileRecord,
    away: Rc<Cell<bool>>,
}

impl Away {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.away.get(), "no route to {}", self.place());
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_mins(10);

impl Record for Away {
    fn place(&self) -> String {
        self.file.place()
    }

    fn read(&self) -> LocalBoxFuture<'_, anyhow::Result<Seen>> {
        Box::pin(async {
            self.check()?;
            self.file.read().await
        })
    }

    fn write<'a>(
        &'a self,
        seen: &'a Seen,
        entry: &'a Entry,
    ) -> LocalBoxFuture<'a, anyhow::Result<Option<Seen>>> {
        Box::pin(async {
            self.check()?;
            self.file.write(seen, entry).await
        })
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

/// Records on so many hosts, and the switches that take them away.
async fn on_hosts(directory: &tempfile::TempDir, count: usize) -> (Vec<Holding>, Vec<Rc<Cell<bool>>>) {
    let (mut held, mut switches) = (Vec::new(), Vec::new());
    for number in 0..count {
        let away = Rc::new(Cell::new(false));
        let file = FileRecord::new(directory.path().join(format!("{number}.json")));
        let record = Box::new(Away { file, away: Rc::clone(&away) });
        held.push(Holding::acquire(record, "a", false, &|_| ()).await.unwrap());
        switches.push(away);
    }
    (held, switches)
}

#[tokio::test(start_paused = true)]
async fn hosts_that_restart_do_not_end_the_work() {
    for (count, away) in [(1, 1), (3, 1), (3, 3)] {
        let directory = tempfile::tempdir().unwrap();
        let (mut held, switches) = on_hosts(&directory, count).await;
        let restarts = async {
            for switch in switches.iter().take(away) {
                switch.set(true);
            }
            sleep(PATIENCE / 2).await;
            for switch in &switches {
                switch.set(false);
            }
            sleep(RENEWAL * 2).await;
        };
        tokio::select! {
            lost = keep(&mut held) => panic!("{count}, {away}: {lost}"),
            () = restarts => {}
        }
        // All are renewed again, as if nothing had been.
        assert!(held.iter().all(|holding| holding.health.renewed.get().elapsed() <= RENEWAL * 2));
    }
}

#[tokio::test(start_paused = true)]
async fn work_ends_when_most_records_are_out_of_reach_for_too_long() {
    for (count, away, ends) in [(1, 1, true), (2, 1, false), (2, 2, true), (3, 1, false), (3, 2, true)] {
        let directory = tempfile::tempdir().unwrap();
        let (mut held, switches) = on_hosts(&directory, count).await;
        for switch in switches.iter().take(away) {
            switch.set(true);
        }
        let started = Instant::now();
        match timeout(PATIENCE * 3, keep(&mut held)).await {
            Ok(lost) => {
                assert!(ends && started.elapsed() >= PATIENCE, "{count}, {away}: {lost}");
                let text = format!("{:#}", anyhow::Error::from(lost));
                assert!(
                    text.starts_with("cannot stay the writer by /") && text.contains("no route"),
                    "{text}"
                );
            }
            Err(_) => assert!(!ends, "{count}, {away}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_record_that_someone_else_has_ends_the_work() {
    let directory = tempfile::tempdir().unwrap();
    let (mut held, switches) = on_hosts(&directory, 3).await;
    switches[0].set(true);
    // It restarted, and was taken by one who saw it first.
    let taken = async {
        sleep(RENEWAL * 4).await;
        let file = Box::new(FileRecord::new(directory.path().join("0.json")));
        Holding::acquire(file, "b", false, &|_| ()).await.unwrap();
        switches[0].set(false);
        std::future::pending::<()>().await;
    };
    let lost = tokio::select! {
        lost = keep(&mut held) => lost,
        () = taken => unreachable!(),
    };
    assert!(matches!(&lost, Error::Held { holder, .. } if holder == "b"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_record_of_the_cluster_is_not_waited_for_longer_than_others_wait() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    let record = Box::new(FileRecord::new(place.join("writer.json")));
    let mut held = [Holding::acquire(record, "a", false, &|_| ()).await.unwrap()];
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::write(&place, "").unwrap();
    let started = Instant::now();
    let lost = keep(&mut held).await;
    assert!(matches!(lost, Error::Lost { .. }) && started.elapsed() < DURATION, "{lost}");
}
