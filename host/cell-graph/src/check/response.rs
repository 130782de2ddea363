//! Response tensors: whether the model describes them, and which steps of which outputs have to leave the worker for them.

use super::draft::{Draft, Whereabouts, limit};
use super::error::{GraphError, GraphFault, GraphPlace};
use crate::cell::Port;
use crate::graph::{Gathered, OutputRef, ResponseTensor};
use crate::resolve::short;
use crate::unfolded::{Delivery, ResponseFrom, UnfoldedResponse};

impl Draft<'_> {
    pub(super) fn add_outputs(&mut self, given: Vec<ResponseTensor>) -> Result<Vec<UnfoldedResponse>, GraphError> {
        let at = |fault| GraphError::new(GraphPlace::Growth, fault);
        limit("response tensors", given.len(), self.limits.outputs_max).map_err(at)?;
        let mut outputs: Vec<UnfoldedResponse> = Vec::with_capacity(given.len());
        for tensor in given {
            let checked = self.output(&tensor, &outputs);
            outputs.push(checked.map_err(|fault| GraphError::new(GraphPlace::Output { name: short(&tensor.name) }, fault))?);
        }
        Ok(outputs)
    }

    fn output(&mut self, tensor: &ResponseTensor, earlier: &[UnfoldedResponse]) -> Result<UnfoldedResponse, GraphFault> {
        let position = self.model.description.outputs.iter().position(|spec| spec.name == tensor.name);
        let position = position.ok_or(GraphFault::UnknownOutput)?;
        let output = position as u32;
        if earlier.iter().any(|other| other.output == output) {
            return Err(GraphFault::GivenTwice);
        }
        let from = match &tensor.from {
            Gathered::Last(of) => {
                let (local, port) = self.own(*of)?;
                self.fits(position, port, None)?;
                self.deliver_last(local, *of, tensor.stream);
                ResponseFrom::Last(triple(*of))
            }
            Gathered::All(of) => {
                let (local, port) = self.own(*of)?;
                let facts = self.facts[local];
                let steps = if facts.may_stop { -1 } else { i64::from(facts.bound) };
                self.fits(position, port, Some(steps))?;
                self.deliver(local, *of, Delivery::All);
                ResponseFrom::All(triple(*of))
            }
            Gathered::Listed(list) => self.listed(position, list, tensor.stream)?,
        };
        Ok(UnfoldedResponse { output, from, stream: tensor.stream })
    }

    fn listed(&mut self, position: usize, list: &[OutputRef], stream: bool) -> Result<ResponseFrom, GraphFault> {
        limit("listed outputs", list.len(), self.limits.outputs_max)?;
        if list.is_empty() {
            return Err(GraphFault::NothingListed);
        }
        for of in list {
            let (local, port) = self.own(*of)?;
            self.fits(position, port, Some(list.len() as i64))?;
            self.deliver_last(local, *of, stream);
        }
        Ok(ResponseFrom::Listed(list.iter().copied().map(triple).collect()))
    }

    /// An output of a chain of this growth, and the chain's position in it.
    fn own(&self, of: OutputRef) -> Result<(usize, &Port), GraphFault> {
        if of.chain < self.first_chain {
            return Err(GraphFault::OutputOfEarlier { chain: of.chain });
        }
        let found = self.find(of)?;
        match found.at {
            Whereabouts::Here(local) => Ok((local, found.port)),
            Whereabouts::Earlier => Err(GraphFault::OutputOfEarlier { chain: of.chain }),
        }
    }

    /// Whether rows of that port, `leading` of them (−1: known later), are what the description promises.
    ///
    /// Where rows are requests, the description's leading dimension counts requests, and this is one of them.
    fn fits(&self, output: usize, port: &Port, leading: Option<i64>) -> Result<(), GraphFault> {
        let description = &self.model.description;
        let spec = &description.outputs[output];
        if spec.datatype != port.datatype {
            return Err(GraphFault::OutputDatatype { wanted: spec.datatype, given: port.datatype });
        }
        let wanted = if description.rows_are_requests { spec.shape.get(1..).unwrap_or_default() } else { &spec.shape };
        let given = || leading.into_iter().chain(port.shape.iter().map(|extent| i64::from(*extent)));
        let rank = port.shape.len() + usize::from(leading.is_some());
        if rank != wanted.len() || given().zip(wanted).any(|(given, wanted)| *wanted != -1 && *wanted != given) {
            return Err(GraphFault::OutputShape { wanted: wanted.to_vec(), given: given().collect() });
        }
        Ok(())
    }

    /// A chain that follows another learns too late which of its steps is the last, so it sends them all; so does a stage that is not the one
    /// that stops its chain, because its row may have run before the stop was known.
    fn deliver_last(&mut self, local: usize, of: OutputRef, stream: bool) {
        let chain = &self.chains[local];
        let all = stream || chain.length.like.is_some() || chain.stop.is_some_and(|(stage, _)| stage != of.stage);
        self.deliver(local, of, if all { Delivery::All } else { Delivery::Last });
    }

    pub(super) fn deliver(&mut self, local: usize, of: OutputRef, delivery: Delivery) {
        let sent = &mut self.chains[local].stages[of.stage as usize].delivery[of.output as usize];
        if *sent != Delivery::All {
            *sent = delivery;
        }
    }
}

pub(super) const fn triple(of: OutputRef) -> (u32, u32, u32) {
    (of.chain, of.stage, of.output)
}
