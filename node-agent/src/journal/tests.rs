use common::annotations::RequestError;

use super::*;

const LIMITS: Limits = Limits { attempts: 3, delay: SignedDuration::from_secs(10) };

fn plan() -> Plan {
    Plan::new([("kubelet".parse().unwrap(), "1.37.1".parse().unwrap())].into())
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn failed() -> Failed {
    Failed { reason: Reason::PackageFailed, message: "x".into() }
}

fn accepted() -> Journal {
    let mut journal = Journal::default();
    journal.accept(plan(), Origin::Node, true, at(0));
    journal
}

#[test]
fn it_survives_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.json");
    assert_eq!(Journal::read(&path).unwrap(), Journal::default());
    let mut journal = accepted();
    journal.begin(Step::Change("kubelet".parse().unwrap()), &BootId::new("b"));
    journal.write(&path).unwrap();
    assert_eq!(Journal::read(&path).unwrap(), journal);
    journal.fail(failed(), at(1), Limits { attempts: 1, ..LIMITS }, 0.0);
    journal.write(&path).unwrap();
    assert_eq!(Journal::read(&path).unwrap(), journal);
}

#[test]
fn a_later_form_is_refused_and_a_damaged_file_is_kept_aside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.json");
    std::fs::write(&path, r#"{"format": 2, "other": []}"#).unwrap();
    assert!(matches!(Journal::read(&path), Err(JournalError::TooNew { found: 2, .. })));
    std::fs::write(&path, "{").unwrap();
    // Looking at it leaves it; only the service puts it away.
    assert!(matches!(Journal::read(&path), Err(JournalError::Damaged { .. })));
    assert_eq!(Journal::take(&path).unwrap(), Journal::default());
    assert_eq!(std::fs::read_to_string(directory.path().join("journal.damaged")).unwrap(), "{");
    // A broken disk gives any bytes.
    std::fs::write(&path, b"{\"format\": \xff").unwrap();
    assert_eq!(Journal::take(&path).unwrap(), Journal::default());
}

#[test]
fn attempts_are_counted_with_growing_delays_until_quarantine() {
    let mut journal = accepted();
    journal.fail(failed(), at(0), LIMITS, 0.0);
    assert_eq!(journal.active.as_ref().unwrap().retry_at, Some(at(10)));
    journal.fail(failed(), at(100), LIMITS, 1.0);
    assert_eq!(journal.active.as_ref().unwrap().retry_at, Some(at(125)));
    journal.fail(failed(), at(200), LIMITS, 0.0);
    assert!(journal.active.is_none() && !journal.ready);
    let quarantine = journal.quarantine.clone().unwrap();
    assert_eq!((quarantine.attempts, quarantine.plan, quarantine.failure), (3, plan().id(), failed()));
    // A person, or another plan, starts over.
    assert!(journal.retry());
    journal.accept(plan(), Origin::Node, true, at(300));
    assert_eq!(journal.active.as_ref().unwrap().attempt, 1);
}

#[test]
fn the_longest_delay_is_bounded() {
    let mut journal = accepted();
    let limits = Limits { attempts: 100, ..LIMITS };
    for _ in 0..60 {
        journal.fail(failed(), at(0), limits, 1.0);
    }
    assert_eq!(journal.active.unwrap().retry_at, Some(at(375)));
}

#[test]
fn a_start_in_the_middle_of_a_step_counts_and_a_reboot_is_proved_by_another_boot() {
    let (one, two) = (BootId::new("one"), BootId::new("two"));
    let mut cut = accepted();
    cut.begin(Step::Change("kubelet".parse().unwrap()), &one);
    cut.recover(&one, at(1), LIMITS);
    let active = cut.active.clone().unwrap();
    assert_eq!((active.attempt, active.failure.unwrap().reason), (2, Reason::Interrupted));
    // Starting again between two steps counts nothing.
    cut.recover(&one, at(1), LIMITS);
    assert_eq!(cut.active.unwrap().attempt, 2);

    let mut rebooting = accepted();
    rebooting.begin(Step::Reboot, &one);
    let mut stuck = rebooting.clone();
    rebooting.recover(&two, at(1), LIMITS);
    assert_eq!(rebooting.active.unwrap().attempt, 1);
    stuck.recover(&one, at(1), LIMITS);
    assert_eq!(stuck.active.unwrap().failure.unwrap().reason, Reason::RebootFailed);
}

#[test]
fn a_step_that_always_ends_the_host_ends_in_quarantine() {
    let mut journal = accepted();
    for boot in ["1", "2", "3"] {
        journal.begin(Step::Change("kubelet".parse().unwrap()), &BootId::new(boot));
        journal.recover(&BootId::new("x"), at(1), LIMITS);
    }
    assert_eq!(journal.quarantine.unwrap().failure.reason, Reason::Interrupted);
}

#[test]
fn finishing_makes_ready_and_remembers_the_initial_plan() {
    let mut journal = accepted();
    journal.finish(at(5));
    assert!(journal.ready && journal.initialized.is_none());
    assert_eq!(journal.last_success, Some(at(5)));
    let mut journal = Journal::default();
    journal.accept(plan(), Origin::Metadata, true, at(0));
    journal.finish(at(5));
    assert_eq!(journal.initialized, Some(plan().id()));
}

fn said(plan: Option<Plan>, permit: bool, paused: Option<&str>) -> Asked {
    Asked::Node(Ok(Request { plan, permit, paused: paused.map(str::to_owned) }))
}

#[test]
fn a_permit_that_was_taken_away_stays_away_in_silence_and_on_the_disk() {
    let other = Plan::new([("kubelet".parse().unwrap(), "1.37.2".parse().unwrap())].into());
    let permit = said(Some(plan()), true, None);
    let withdrawn = |journal: &Journal| journal.active.as_ref().unwrap().withdrawn;
    for asked in [
        said(Some(plan()), false, None),
        said(Some(plan()), true, Some("no")),
        said(Some(other), true, None),
        said(None, true, None),
        Asked::Node(Err(RequestError::NoHash)),
        Asked::Nothing,
        Asked::Metadata(plan()),
    ] {
        let mut journal = accepted();
        journal.hear(&permit);
        assert!(!withdrawn(&journal));
        journal.hear(&asked);
        journal.hear(&Asked::Silence { since: at(0) });
        let mut journal: Journal = serde_json::from_str(&serde_json::to_string(&journal).unwrap()).unwrap();
        assert!(withdrawn(&journal), "{asked:?}");
        journal.hear(&permit);
        assert!(!withdrawn(&journal));
    }
    let mut initial = Journal::default();
    initial.accept(plan(), Origin::Metadata, true, at(0));
    initial.hear(&Asked::Metadata(plan()));
    assert!(!withdrawn(&initial));
}

#[test]
fn ready_and_the_plan_under_way_never_contradict_the_observed_plan() {
    let other: PlanId = "000000000000".parse().unwrap();
    let mut journal = accepted();
    journal.stand(Standing::Keep);
    journal.stand(Standing::Missed(plan().id()));
    assert!(journal.active.is_some() && !journal.ready);
    let mut refused = journal.clone();
    refused.stand(Standing::Missed(other.clone()));
    assert_eq!((refused.active, refused.observed, refused.ready), (None, Some(other.clone()), false));
    let mut superseded = journal.clone();
    superseded.stand(Standing::At(other.clone()));
    assert_eq!((superseded.active, superseded.observed, superseded.ready), (None, Some(other), true));
    journal.stand(Standing::NoPlan);
    assert_eq!((journal.active, journal.observed, journal.ready), (None, None, true));
}

#[test]
fn another_initial_plan_takes_the_mark_of_the_first_back() {
    let mut journal = Journal::default();
    journal.accept(plan(), Origin::Metadata, true, at(0));
    journal.finish(at(5));
    let mut joined = journal.clone();
    joined.accept(Plan::default(), Origin::Node, true, at(6));
    assert_eq!(joined.initialized, Some(plan().id()));
    journal.accept(Plan::default(), Origin::Metadata, true, at(6));
    assert_eq!(journal.initialized, None);
}

#[test]
fn waiting_for_someone_else_counts_no_attempt() {
    let mut journal = accepted();
    for _ in 0..10 {
        journal.postpone(failed(), at(0), LIMITS, 0.0);
    }
    let active = journal.active.unwrap();
    assert_eq!((active.attempt, active.retry_at, active.failure), (1, Some(at(10)), Some(failed())));
}
