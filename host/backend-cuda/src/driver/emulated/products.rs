//! A library of products for an emulated device: loops, in one order whatever the shape, so that nothing of what it leaves surprises.

use super::Emulated;
use super::device::Work;
use super::graphs::Node;
use crate::driver::products::{PLANS_OF_DRIVER_MAX, ProductOperands, ProductPlan, ProductShape, Products};
use crate::driver::{Done, Fault, Graph, GraphLaunch, Stream};

/// Bytes of workspace that a product wants, so that whoever gives it none notices: it fills them.
const WORKSPACE_BYTES: usize = 256;

/// The plans of a driver.
#[derive(Default)]
pub(super) struct Plans(Vec<ProductShape>);

/// A product that is queued.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) shape: ProductShape,
    operands: ProductOperands,
}

impl Product {
    /// Each sum from zero, k ascending.
    ///
    /// # Safety
    /// The matrices lie there, and nobody else writes them meanwhile.
    pub(super) unsafe fn run(&self) {
        let [rows, k, n] = [self.shape.rows, self.shape.k, self.shape.n].map(|side| side as usize);
        let ProductOperands { x, weights, y, workspace } = self.operands;
        // SAFETY: the caller's promise; memory of the device is aligned to more than these need, and the three do not overlap.
        let (x, weights, y) = unsafe {
            (workspace.0 as *mut u8).write_bytes(0xFF, WORKSPACE_BYTES);
            (
                std::slice::from_raw_parts(x.0 as *const u16, rows * k),
                std::slice::from_raw_parts(weights.0 as *const u16, n * k),
                std::slice::from_raw_parts_mut(y.0 as *mut f32, rows * n),
            )
        };
        let float = |half: &u16| f32::from_bits(u32::from(*half) << 16);
        for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
            for (weights, y) in weights.chunks_exact(k).zip(y) {
                *y = x.iter().zip(weights).fold(0.0, |sum, (x, weight)| sum + float(x) * float(weight));
            }
        }
    }
}

impl Emulated {
    /// A product as it is queued, if the library would take it.
    pub(super) fn product(&mut self, plan: ProductPlan, operands: &ProductOperands) -> Done<Product> {
        let shape = self.products.as_ref().and_then(|plans| plans.0.get(plan.0 as usize)).copied();
        let shape = shape.ok_or_else(|| Fault::Refused("a plan of another driver is named".to_owned()))?;
        let [x, weights, y] = shape.bytes().unwrap_or_default();
        let ProductOperands { x: x_at, weights: weights_at, y: y_at, workspace } = *operands;
        let state = self.device.state()?;
        for (at, bytes) in [(x_at, x), (weights_at, weights), (y_at, y), (workspace, WORKSPACE_BYTES)] {
            state.memory.within("a product", at, bytes)?;
            if !at.0.is_multiple_of(256) {
                return Err(Fault::Refused(format!("a matrix of a product lies at {:#x}", at.0)));
            }
        }
        Ok(Product { shape, operands: *operands })
    }
}

impl Products for Emulated {
    fn library(&self) -> String {
        "loops".to_owned()
    }

    fn plans(&mut self, shape: ProductShape, workspace_bytes: usize) -> Done<Vec<ProductPlan>> {
        self.device.check()?;
        if shape.bytes().is_none() {
            return Err(Fault::Refused(format!("there is no product {shape:?}")));
        }
        let plans = &mut self.products.get_or_insert_default().0;
        if plans.len() == PLANS_OF_DRIVER_MAX {
            return Err(Fault::Refused(format!("there are {PLANS_OF_DRIVER_MAX} plans of products already")));
        }
        if workspace_bytes < WORKSPACE_BYTES {
            return Ok(Vec::new());
        }
        plans.push(shape);
        Ok(vec![ProductPlan(plans.len() as u32 - 1)])
    }

    unsafe fn multiply(&mut self, stream: Stream, plan: ProductPlan, operands: &ProductOperands) -> Done {
        let product = self.product(plan, operands)?;
        self.device.queue(stream, |_| Ok(Work::Product(product)))
    }

    unsafe fn graph(
        &mut self,
        before: &[GraphLaunch],
        (plan, operands): (ProductPlan, &ProductOperands),
        behind: &[GraphLaunch],
    ) -> Done<Graph> {
        let launches = |launches: &[GraphLaunch]| launches.iter().cloned().map(Node::Launch).collect::<Vec<_>>();
        self.graph_of([launches(before), vec![Node::Product(plan, *operands)], launches(behind)].concat())
    }
}
