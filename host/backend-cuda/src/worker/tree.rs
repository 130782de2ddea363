//! Nodes of binary trees by kernels of their own: as steps of an LSTM (`recurrent`), but that every row has two children and none a step before.

use super::device::Device;
use super::frame::FrameMemory;
use super::recurrent::{LIST_THREADS, Recurrent, step_tile};
use crate::abi::{LstmRows, NOWHERE, TREE_LISTS, TreeListArguments, TreeStepArguments};
use crate::driver::{Done, Launch};
use crate::plan::Second;

impl Recurrent {
    /// Queues the nodes that so many rows of the frame are, or fewer, if a head at that address says so.
    pub(super) fn launch_tree(
        &self,
        device: &mut Device,
        (frame, stride): (FrameMemory, u32),
        (rows, rows_at): (u32, u64),
        second: Second,
    ) -> Done {
        let (plan, units) = (&self.plan, self.plan.units);
        let lists = Self::lists(frame, stride, rows);
        let place = |place: usize| place as u32;
        let arguments = TreeListArguments {
            frame: frame.address.0,
            lists,
            stride,
            own: plan.own,
            units,
            begin: plan.begin.map_or(NOWHERE, place),
            h: [plan.h, second.h].map(place),
            c: [plan.c, second.c].map(place),
            h_from: [plan.h_from, second.rounded].map(place),
            h_exact: place(plan.h_next),
            c_out: place(plan.c_next),
            is_f16: u32::from(plan.is_f16),
            padding: 0,
            head: rows_at,
        };
        let launch =
            Launch { kernel: self.kernels.tree_rows, grid: [rows, 1, 1], threads: LIST_THREADS, shared_bytes: 0, cooperative: false };
        // SAFETY: the kernel takes this structure; rows and lists lie in the frame.
        unsafe { device.launch(&launch, &arguments)? };
        let multiprocessors = device.driver.facts().multiprocessors;
        let Some((kernel, tile)) = step_tile(self.kernels.steps(plan), (rows, units), multiprocessors) else { return Ok(()) };
        let list = |number: usize| lists + number as u64 * u64::from(rows) * size_of::<u64>() as u64;
        let [c, c_right, begin, c_out, h_exact] = std::array::from_fn::<u64, TREE_LISTS, _>(list);
        let of_nodes = LstmRows { c, begin, c_out, h_exact, rows, ..LstmRows::default() };
        let mut matrix = |place| frame.matrix(device, (place, units), (rows, stride));
        let (left, right) = (matrix(plan.h_from)?, matrix(second.rounded)?);
        let [i, f_left, f_right, o, u] = plan.columns;
        let columns = [i, f_left, f_right, o, u, 0];
        let arguments = TreeStepArguments {
            left,
            right,
            rows: of_nodes,
            c_right,
            weights: self.weights,
            bias: self.bias,
            units,
            padding: 0,
            columns,
            rows_at,
        };
        let (grid, shared_bytes) = ([tile.tiles(rows, units), 1, 1], tile.shared_bytes(units));
        let launch = Launch { kernel, grid, threads: tile.threads, shared_bytes, cooperative: false };
        // SAFETY: the kernel takes this structure; the lists lie behind the frame's rows, and what they name in those, as boxes of rows do (`FrameMemory::matrix`).
        unsafe { device.launch(&launch, &arguments) }
    }
}
