//! One chain: its length, stages, feedback and stop.

use super::draft::{Draft, DraftSeries, Facts, Whereabouts, stronger};
use super::error::{GraphError, GraphFault, GraphPlace};
use super::{links, source};
use crate::cell::Port;
use crate::datatype::Datatype;
use crate::graph::{Chain, Extent, Feedback, Series, Stage};
use crate::resolve::{ShapeText, short};
use crate::unfolded::{Delivery, Dependency, Grouping, Length, Retention, Source, Successors, UnfoldedChain, UnfoldedInput, UnfoldedStage};

/// Stages of a step: sets of stages are words of that many bits.
const STAGES_MAX: usize = 64;

/// A chain while its sources are looked at; its stages have their cells already, so that they can refer to one another.
pub(super) struct Building {
    pub(super) chain: u32,
    pub(super) bound: u32,
    pub(super) may_stop: bool,
    /// The chain with a stop whose length it has.
    pub(super) like: Option<u32>,
    pub(super) stages: Vec<UnfoldedStage>,
    pub(super) series: Option<DraftSeries>,
}

impl Draft<'_> {
    /// Checks the growth's next chain and adds it.
    pub(super) fn add_chain(&mut self, chain: Chain) -> Result<(), GraphError> {
        let number = self.first_chain.saturating_add(u32::try_from(self.chains.len()).unwrap_or(u32::MAX));
        let at_chain = |fault| GraphError::new(GraphPlace::Chain { chain: number }, fault);
        let length = self.length(&chain).map_err(at_chain)?;
        self.charge_nodes(&chain, length.bound).map_err(at_chain)?;
        let may_stop = length.like.is_some() || chain.stop.is_some();
        let stages = self.stages(number, &chain.stages)?;
        let series = self.series_of(&chain).map_err(at_chain)?;
        let continues = if let Some(Series::Continues(of)) = chain.series { Some(of) } else { None };
        let mut building = Building { chain: number, bound: length.bound, may_stop, like: length.like, stages, series };
        if let Some(of) = continues {
            self.wait_for_series(&mut building, of).map_err(at_chain)?;
        }
        for (position, feedback) in chain.feedback.iter().enumerate() {
            let place = || GraphPlace::Feedback { chain: number, position };
            self.feedback(&mut building, *feedback).map_err(|fault| GraphError::new(place(), fault))?;
        }
        let stop = chain.stop;
        if let Some((stage, output)) = stop {
            self.stop(&building, stage, output).map_err(|fault| GraphError::new(GraphPlace::Stop { chain: number }, fault))?;
        }
        let named_from = self.named.len();
        for (stage, given) in chain.stages.into_iter().enumerate() {
            self.sources(&mut building, stage, given)?;
            self.name_producers(&mut building, stage);
        }
        if let Some(like) = length.like.filter(|like| *like < self.first_chain) {
            building.stages.iter_mut().for_each(|stage| stage.depends.push(Dependency::End { chain: like }));
        }
        let double = links::finish(&mut building.stages, length.bound, stop.map(|(stage, _)| stage));
        self.charge_blocks(&building.stages, length.bound).map_err(at_chain)?;
        self.group(&mut building, named_from);
        let sequential = !chain.feedback.is_empty() || stop.is_some();
        self.facts.push(Facts { bound: length.bound, may_stop, double });
        if let Some(series) = building.series {
            self.series.insert(self.chains.len(), series);
        }
        self.chains.push(UnfoldedChain { stages: building.stages, length, sequential, stop, continues });
        Ok(())
    }

    fn length(&self, chain: &Chain) -> Result<Length, GraphFault> {
        let like = match chain.length {
            Extent::Fixed(0) => return Err(GraphFault::NoSteps),
            Extent::Fixed(bound) => return Ok(Length { bound, like: None }),
            Extent::Like(like) => like,
        };
        let (bound, may_stop, root) = match self.find_chain(like)? {
            (Whereabouts::Here(local), _) => {
                let other = &self.chains[local];
                (other.length.bound, other.may_stop(), other.length.like.unwrap_or(like))
            }
            (Whereabouts::Earlier, Some(kept)) => (kept.bound, kept.may_stop, like),
            (Whereabouts::Earlier, None) => return Err(GraphFault::ChainNotKept { chain: like }),
        };
        if may_stop && chain.stop.is_some() {
            return Err(GraphFault::LikeAndStop { chain: like });
        }
        Ok(Length { bound, like: may_stop.then_some(root) })
    }

    fn charge_nodes(&mut self, chain: &Chain, bound: u32) -> Result<(), GraphFault> {
        if chain.stages.is_empty() {
            return Err(GraphFault::NoStages);
        }
        super::draft::limit("stages", chain.stages.len(), STAGES_MAX)?;
        self.nodes = self.nodes.saturating_add(u64::from(bound).saturating_mul(chain.stages.len() as u64));
        let limit = self.limits.nodes_max;
        if self.nodes > limit { Err(GraphFault::Sum { what: "nodes", count: self.nodes, limit }) } else { Ok(()) }
    }

    /// The stages' cells, with room for their inputs.
    fn stages(&self, chain: u32, given: &[Stage]) -> Result<Vec<UnfoldedStage>, GraphError> {
        let mut stages = Vec::with_capacity(given.len());
        for (position, stage) in given.iter().enumerate() {
            let at = |fault| GraphError::new(GraphPlace::Stage { chain, stage: position as u32 }, fault);
            let cells = self.model.cells.len();
            let Some(cell) = self.model.cells.get(stage.cell as usize) else {
                return Err(at(GraphFault::NoCell { cell: stage.cell, cells }));
            };
            if stage.inputs.len() != cell.inputs.len() {
                return Err(at(GraphFault::SourceCount { given: stage.inputs.len(), wanted: cell.inputs.len() }));
            }
            let mut inputs = Vec::with_capacity(cell.inputs.len());
            inputs.resize_with(cell.inputs.len(), || UnfoldedInput { source: Source::Zeros, feedback: None });
            stages.push(UnfoldedStage {
                cell: stage.cell,
                inputs,
                depends: Vec::new(),
                named_producers: Vec::new(),
                successors: Successors::default(),
                retention: Retention::None,
                grouping: Grouping::Each,
                delivery: vec![Delivery::None; cell.outputs.len()],
            });
        }
        Ok(stages)
    }

    fn feedback(&mut self, building: &mut Building, feedback: Feedback) -> Result<(), GraphFault> {
        let Feedback { stage, output, to_stage, input } = feedback;
        let from = self.own_output(building, stage, output)?;
        let Some(target) = building.stages.get_mut(to_stage as usize) else {
            return Err(GraphFault::NoStage { chain: building.chain, stage: to_stage });
        };
        let port = self.model.cells.get(target.cell as usize).and_then(|cell| cell.inputs.get(input as usize));
        let (Some(port), Some(slot)) = (port, target.inputs.get_mut(input as usize)) else {
            return Err(GraphFault::NoInput { stage: to_stage, input });
        };
        if !port.carried {
            return Err(GraphFault::NotCarried { stage: to_stage, input });
        }
        if slot.feedback.is_some() {
            return Err(GraphFault::FedTwice { stage: to_stage, input });
        }
        same_row(port, from)?;
        slot.feedback = Some((stage, output));
        target.depends.push(Dependency::Previous { stage });
        self.charge_edges(building.bound - 1)
    }

    fn stop(&self, building: &Building, stage: u32, output: u32) -> Result<(), GraphFault> {
        let port = self.own_output(building, stage, output)?;
        if port.datatype == Datatype::Bool && matches!(port.shape.as_slice(), [] | [1]) {
            return Ok(());
        }
        Err(GraphFault::NotAStop { datatype: port.datatype, shape: shape_text(&port.shape) })
    }

    fn sources(&mut self, building: &mut Building, stage: usize, given: Stage) -> Result<(), GraphError> {
        for (input, given) in given.inputs.into_iter().enumerate() {
            let cell = building.stages[stage].cell;
            let port = &self.model.cells[cell as usize].inputs[input];
            let mut reader = source::Reader { draft: self, building, stage, input, port };
            let checked = reader.check(given).map_err(|fault| {
                let (chain, stage, port) = (building.chain, stage as u32, short(&port.name));
                GraphError::new(GraphPlace::Input { chain, stage, input, port }, fault)
            })?;
            building.stages[stage].inputs[input].source = checked;
        }
        Ok(())
    }

    /// An output of a stage of the chain being built.
    pub(super) fn own_output(&self, building: &Building, stage: u32, output: u32) -> Result<&Port, GraphFault> {
        let chain = building.chain;
        let cell = building.stages.get(stage as usize).map(|stage| stage.cell).ok_or(GraphFault::NoStage { chain, stage })?;
        self.output_port(chain, stage, cell, output)
    }
}

impl Building {
    pub(super) fn retain(&mut self, stage: u32, retention: Retention) {
        let held = &mut self.stages[stage as usize].retention;
        *held = stronger(*held, retention);
    }
}

/// Whether rows of the one can be read as the other.
pub(super) fn same_row(wanted: &Port, given: &Port) -> Result<(), GraphFault> {
    if wanted.datatype != given.datatype {
        return Err(GraphFault::Datatype { wanted: wanted.datatype, given: given.datatype });
    }
    if wanted.shape != given.shape {
        return Err(GraphFault::Shape { wanted: shape_text(&wanted.shape), given: shape_text(&given.shape) });
    }
    Ok(())
}

pub(super) fn shape_text(shape: &[u32]) -> ShapeText {
    ShapeText::row(shape.iter().map(|extent| *extent as usize))
}
