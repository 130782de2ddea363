//! What policies are called, and what becomes of one that breaks rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cellwright_cell_graph::generate::{seeds, try_each};

use super::*;
use crate::{Event, ModelId, ModelInfo};
use dice::Dice;
use traffic::{Run, Scope, scope};

#[path = "../../tests/suite/dice.rs"]
mod dice;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../tests/suite/graphs.rs"]
mod graphs;
#[path = "../../tests/suite/model.rs"]
mod model;
#[path = "../../tests/suite/sharing.rs"]
mod sharing;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../tests/suite/traffic.rs"]
mod traffic;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../tests/suite/world.rs"]
mod world;

#[test]
fn policies_are_read_as_they_are_written() {
    let graphs = ["graph:10", "graph:1024", "graph:0", "graph:10:95", "serial", "merge:16", "lazy:100:90", "lazy:5:100"];
    for text in graphs.into_iter().chain(["cellular", "adaptive", "length-aware:0", "length-aware:5:100", "stages:4", "stages:2:0"]) {
        assert_eq!(text.parse::<PolicyKind>().unwrap().to_string(), text);
    }
    for (text, whole) in [
        ("graph", "graph:10"),
        ("merge", "merge:64"),
        ("lazy", "lazy:100:90"),
        ("lazy:7", "lazy:7:90"),
        ("length-aware", "length-aware:0"),
        ("stages", "stages:8"),
    ] {
        assert_eq!(text.parse::<PolicyKind>().unwrap().to_string(), whole);
    }
    for text in [
        "",
        "graph:-1",
        "graph:x",
        "graph:1025",
        "graph:99999999",
        "graph:10:x",
        "graph:10:-1",
        "graph:10:5:7",
        "graph:10:60001",
        "cellular:2",
        "serial:1",
        "merge:0",
        "merge:4:5",
        "lazy:0",
        "lazy:5:0",
        "lazy:5:101",
        "length-aware:x",
        "length-aware:5:60001",
        "length-aware:5:5:5",
        "stages:0",
        "stages:65",
        "stages:4:x",
    ] {
        text.parse::<PolicyKind>().unwrap_err();
    }
    assert_eq!(
        PolicyKind::list("and"),
        "`adaptive`, `cellular`, `graph`, `graph:WIDTH`, `graph:WIDTH:WINDOW_MS`, `serial`, `merge`, `merge:REQUESTS`, `lazy`, `lazy:OBJECTIVE_MS`, \
         `lazy:OBJECTIVE_MS:PERCENTILE`, `length-aware`, `length-aware:TIMEOUT_MS`, `length-aware:TIMEOUT_MS:OBJECTIVE_MS`, `stages`, `stages:COUNT` and \
         `stages:COUNT:STRETCH_MS`"
    );
}

/// A policy that picks at random: what may be picked, and what may not.
#[derive(Debug)]
struct Random {
    takes: Takes,
    dice: Dice,
    offered: Vec<RequestId>,
}

impl Random {
    fn id(&mut self) -> u32 {
        *self.dice.pick(&[0, 1, 2, 3, 4, 5, 8, 13, 21, 1000, u32::MAX])
    }

    fn requests(&mut self) -> Vec<RequestId> {
        let Self { dice, offered, .. } = self;
        if !offered.is_empty() && !dice.once_in(3) {
            return vec![*dice.pick(offered)];
        }
        (0..self.dice.below(4)).map(|_| RequestId(self.id())).collect()
    }

    /// Ready nodes, next steps of lanes that there may be, and nonsense.
    fn rows(&mut self, view: View<'_>, worker: WorkerId, cell_type: CellTypeId) -> Vec<Row> {
        let known = view.type_of(cell_type).is_some();
        let ready: Vec<Row> = known.then(|| view.ready_nodes(cell_type, worker)).into_iter().flatten().collect();
        let count = self.dice.between(0, 7);
        let row = |this: &mut Self| match this.dice.below(4) {
            0 | 1 if !ready.is_empty() => *this.dice.pick(&ready),
            2 => Row { lane: crate::LaneId(this.dice.below(12)), step: this.dice.below(3) },
            _ => Row { lane: crate::LaneId(this.id()), step: this.id() },
        };
        (0..count).map(|_| row(self)).collect()
    }

    /// A step of a request, which may be taken for another worker or for none.
    fn step(&mut self, view: View<'_>) -> Option<Pick> {
        let Self { dice, offered, .. } = self;
        let request = view.request((!offered.is_empty()).then(|| *dice.pick(offered))?);
        let chain = request.chain(dice.below(2)).filter(|chain| !chain.gone())?;
        let row = Row { lane: chain.lane(dice.below(chain.stages())), step: dice.below(3) };
        Some(Pick::Run(view.cell_type_of(row.lane), vec![row]))
    }

    fn pick(&mut self, view: View<'_>, worker: WorkerId) -> Pick {
        if self.dice.once_in(4)
            && let Some(pick) = self.step(view)
        {
            return pick;
        }
        let ready = |cell_type: &CellTypeId| view.ready_nodes(*cell_type, worker).next().is_some();
        let types: Vec<CellTypeId> = view.types().iter().map(|known| known.cell_type).filter(ready).collect();
        let cell_type = if types.is_empty() || self.dice.once_in(8) { CellTypeId(self.id()) } else { *self.dice.pick(&types) };
        match self.dice.below(8) {
            // A known type of which nothing is ready is no fault: the others would wait for nothing.
            0..=2 if types.contains(&cell_type) => Pick::Oldest { cell_type, own: false },
            0..=2 => Pick::Oldest { cell_type: CellTypeId(u32::MAX), own: false },
            3 | 4 => Pick::Run(cell_type, self.rows(view, worker, cell_type)),
            5 => Pick::Take(self.requests()),
            6 => Pick::Release(self.requests()),
            _ => Pick::GiveUp(self.requests().into_iter().map(|request| (request, Failure::Overloaded)).collect()),
        }
    }
}

impl Random {
    /// What breaks no rule, if it knows of anything.
    fn careful(&self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let offered = || self.offered.iter().copied().filter(|request| view.request(*request).model == view.model_id());
        let is_own = |row: &Row| view.request_of(row.lane).taken() == Some(worker) && view.request_of(row.lane).model == view.model_id();
        for known in view.types().iter().filter(|_| self.takes == Takes::Requests) {
            let mut rows: Vec<Row> = view.ready_nodes(known.cell_type, worker).filter(is_own).take(known.batch.max as usize).collect();
            rows.truncate(view.fitting(known.cell_type, &rows));
            if !rows.is_empty() {
                return Some(Pick::Run(known.cell_type, rows));
            }
        }
        let complete = offered().find(|id| view.request(*id).taken() == Some(worker) && view.request(*id).live_chains == 0);
        let new = || offered().find(|id| view.request(*id).offered().is_some());
        complete.map(|request| Pick::Release(vec![request])).or_else(|| Some(Pick::Take(vec![new()?])))
    }
}

impl Policy for Random {
    fn takes(&self) -> Takes {
        self.takes
    }

    fn offered(&mut self, _: View<'_>, growth: Member) {
        self.offered.push(growth.request);
    }

    fn oldest(&self, _: View<'_>, _: WorkerId) -> Option<Key> {
        Some(Key::FIRST)
    }

    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let careful = if self.dice.once_in(6) { None } else { self.careful(view, worker) };
        careful.or_else(|| Some(self.pick(view, worker)))
    }

    fn done(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        self.dice.once_in(16).then(|| self.pick(view, worker))
    }
}

/// The world checks every launch, of either model, and that everything ends. Broken rules must be
/// those of the random policy alone.
#[test]
fn a_policy_that_picks_at_random_fails_its_own_model_alone() {
    let (faults, finished) = (AtomicU32::new(0), AtomicU32::new(0));
    try_each(seeds(1500), |seed| {
        let scope = Scope { faults: false, losses: false, late: false, reloads: false, requests: 12, ..scope(seed) };
        let mut run = Run::new(seed, scope, |_, _| {});
        let (bad, good) = (ModelId(run.world.models.len() as u32), ModelInfo::clone(&run.world.models[0]));
        // As the world is to take it.
        let (takes, kind) = *Dice::new(seed ^ 1).pick(&[
            (Takes::Nodes, PolicyKind::Cellular),
            (Takes::Requests, PolicyKind::Merge(Merge { requests: 4 })),
            (Takes::RequestsInOrder, PolicyKind::Serial),
        ]);
        let info = Arc::new(ModelInfo { model: bad, policy: Some(kind), ..good });
        run.world.models.push(Arc::clone(&info));
        run.world.scheduler.model_up(info, Box::new(Random { takes, dice: Dice::new(seed ^ 2), offered: Vec::new() }));
        let (mut events, mut models) = (Vec::<Event>::new(), std::collections::BTreeMap::new());
        while let Some(more) = run.round() {
            models.extend(more.iter().filter_map(|event| match event {
                Event::Submit(submission) => Some((submission.request, submission.model)),
                _ => None,
            }));
            events.extend(more);
            run.world.handle(&mut events);
            for refusal in &run.world.commands.refused {
                assert_eq!((refusal.model, refusal.policy), (bad, kind));
                faults.fetch_or(1 << refusal.fault as u32, Ordering::Relaxed);
            }
            for (request, failure) in &run.world.commands.failed {
                assert!(models[request] == bad || !matches!(failure, Failure::Policy { .. }), "{request:?} is of another model");
            }
            let of_bad = run.world.commands.finished.iter().filter(|request| models[request] == bad).count();
            finished.fetch_add(of_bad as u32, Ordering::Relaxed);
        }
    });
    let (faults, finished) = (faults.into_inner(), finished.into_inner());
    assert!(faults == 0xff && finished > 10, "{finished} requests of random policies finished; rules broken: {faults:b}");
}
