//! Looking at nodes: whether they are ready now, one by one, by subgraph, or all nodes of a stage.

use crate::command::Failure;
use crate::core::Core;
use crate::core::lane::{NodeState, Progress, StageRef};
use crate::core::readiness::Verdict;
use crate::core::request::Phase;
use crate::id::{LaneId, RequestId, WorkerId};

impl Core {
    /// The lane of a stage, if it has not been given back.
    pub(super) fn held(&self, id: RequestId, stage: StageRef) -> Option<LaneId> {
        self.request(id).chain(stage.chain).filter(|chain| !chain.gone()).map(|chain| chain.lane(stage.stage))
    }

    /// Looks at one node again.
    pub(super) fn check_node(&mut self, lane: LaneId, step: u32) {
        let place = self.lane(lane);
        match &place.progress {
            Progress::Front(front) if front.member().is_some() => {}
            Progress::Front(front) => {
                let step = front.queued;
                if step < place.limit && front.ready().is_none_or(|ready| ready.only.is_some()) && self.handed_over(lane, 0) {
                    self.judge(lane, step, self.weigh(lane, step, true));
                }
            }
            Progress::Each(nodes) => {
                if step < place.limit && may_become_ready(nodes.states.at(step, &self.moments)) {
                    self.judge(lane, step, self.weigh(lane, step, true));
                }
            }
            Progress::Grouped(grouped) => {
                if step >= place.limit || !may_become_ready(grouped.nodes.states.at(step, &self.moments)) {
                    return;
                }
                let group = grouped.group(step);
                let subgraph = &grouped.subgraphs[group as usize];
                let members = subgraph.members;
                let was_handed = !self.subgraphs() || subgraph.handed == members.1;
                if was_handed {
                    self.judge(lane, step, self.weigh(lane, step, true));
                } else if self.handed_over(lane, group) {
                    self.check_members(lane, members);
                }
            }
        }
    }

    fn check_members(&mut self, lane: LaneId, members: (u32, u32)) {
        for index in members.0..members.1 {
            let Progress::Grouped(grouped) = &self.lane(lane).progress else { return };
            let step = grouped.member(index);
            if step < self.lane(lane).limit && may_become_ready(grouped.nodes.states.at(step, &self.moments)) {
                self.judge(lane, step, self.weigh(lane, step, true));
            }
        }
    }

    /// Looks at every node of a lane again.
    pub(crate) fn check_lane(&mut self, lane: LaneId) {
        match &self.lane(lane).progress {
            Progress::Front(_) => self.check_node(lane, 0),
            Progress::Grouped(grouped) => {
                for group in 0..grouped.subgraphs.len() {
                    let Progress::Grouped(grouped) = &self.lane(lane).progress else { return };
                    let members = grouped.subgraphs[group].members;
                    if self.handed_over(lane, group as u32) {
                        self.check_members(lane, members);
                    }
                }
            }
            Progress::Each(_) => self.check_each(lane),
        }
    }

    /// Looks at every node again that may run.
    pub(crate) fn check_all_requests(&mut self) {
        for index in 0..self.requests.len() {
            let id = RequestId(index as u32);
            let request = self.request(id);
            let runs = request.phase == Phase::Placed && !request.moves() && request.offered().is_none();
            if runs && !self.in_order(request.model) {
                for lane in self.lanes_of(id) {
                    self.check_lane(lane);
                }
            }
        }
    }

    /// As `check_lane`; neighbours that become ready together are listed as one run.
    fn check_each(&mut self, lane: LaneId) {
        let mut run: Option<(u32, Option<WorkerId>)> = None;
        for step in 0..=self.lane(lane).limit {
            let Progress::Each(nodes) = &self.lane(lane).progress else { return };
            let state = (step < self.lane(lane).limit).then(|| nodes.states.at(step, &self.moments));
            let verdict = match state {
                Some(state) if may_become_ready(state) => self.weigh(lane, step, true),
                _ => Verdict::No,
            };
            let fresh = matches!(state, Some(NodeState::Waiting { .. }));
            let only = match verdict {
                Verdict::Ready(only) if fresh => Some(only),
                _ => None,
            };
            if let Some((from, before)) = run
                && only != Some(before)
            {
                self.set_run_ready(lane, from, step, before);
                run = None;
            }
            match only {
                Some(only) => run = Some(run.unwrap_or((step, only))),
                None => self.judge(lane, step, verdict),
            }
        }
    }

    fn judge(&mut self, lane: LaneId, step: u32, verdict: Verdict) {
        match verdict {
            Verdict::No => {}
            Verdict::Ready(only) => self.set_ready(lane, step, only),
            Verdict::Beyond(chain) if self.is_wanted(lane) && self.certain(lane, step) => {
                self.doom(self.lane(lane).request, Failure::BeyondEnd { chain });
            }
            Verdict::Beyond(_) => {}
        }
    }

    /// Whether all outside inputs of a subgraph are complete. Continues where the last check ended.
    fn handed_over(&mut self, lane: LaneId, group: u32) -> bool {
        if !self.subgraphs() || self.lane(lane).plain {
            return true;
        }
        loop {
            let place = self.lane(lane);
            let step = match &place.progress {
                Progress::Front(front) if front.handed >= place.limit => return true,
                Progress::Front(front) => front.handed,
                Progress::Each(_) => return true,
                Progress::Grouped(grouped) => {
                    let subgraph = &grouped.subgraphs[group as usize];
                    if subgraph.handed == subgraph.members.1 {
                        return true;
                    }
                    grouped.member(subgraph.handed)
                }
            };
            if step < place.limit {
                match self.weigh(lane, step, false) {
                    Verdict::Ready(_) => {}
                    // No input will change this. If a stop comes before the step, it does not run.
                    // If none does, its request fails when the step is due.
                    Verdict::Beyond(_) if !self.certain(lane, step) => {}
                    verdict => {
                        self.judge(lane, step, verdict);
                        return false;
                    }
                }
            }
            match &mut self.lane_mut(lane).progress {
                Progress::Front(front) => front.handed += 1,
                Progress::Grouped(grouped) => grouped.subgraphs[group as usize].handed += 1,
                Progress::Each(_) => return true,
            }
        }
    }
}

const fn may_become_ready(state: NodeState) -> bool {
    match state {
        NodeState::Waiting { .. } => true,
        NodeState::Ready(ready) => ready.only.is_some(),
        NodeState::Queued(_) | NodeState::Done | NodeState::Dropped => false,
    }
}
