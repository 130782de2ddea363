//! Generated kernels: their texts for cells that people use, and that they leave the interpreter's bits for random groups.

mod random;

use std::path::Path;

use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_conformance::cells::{self, Draft};

use super::super::Target;
use super::super::tests::HOPPER;
use super::*;
use crate::abi::{CompiledGroupArguments, GroupArguments, bytes_of, bytes_of_all};
use crate::driver::emulated::{Emulated, Emulation};
use crate::driver::{DeviceAddress, Driver, Launch, Stream};
use random::Group;

/// Rows of a launch.
const ROWS: u32 = 3;

fn weight(name: &str) -> Tensor {
    let shape: &[usize] = match name {
        "weight_ih" => &[180, 37],
        "weight_hh" => &[180, 45],
        _ => &[180],
    };
    Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()])
}

fn of_shapes<'a>(shapes: &'a [(&'a str, &'a [usize])]) -> impl Fn(&str) -> Tensor + 'a {
    move |name| {
        let (_, shape) = shapes.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("a weight `{name}`"));
        Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()])
    }
}

/// The texts of a cell's groups.
fn texts(draft: Draft) -> Vec<String> {
    texts_on(draft, false)
}

/// On a device that has Hopper's kernels, or not.
fn texts_on(draft: Draft, is_hopper: bool) -> Vec<String> {
    let plan = Plan::compile(&draft.resolve(), u64::MAX, Target { is_hopper, ..HOPPER }).expect("the worker can run it");
    (0..plan.steps.len()).filter_map(|step| generate(&plan, step)).map(|generated| generated.source).collect()
}

#[test]
fn an_lstm_is_one_loop_that_stores_its_outputs_alone() {
    let texts = texts(cells::lstm("lstm", 37, 45, &weight));
    let [text] = texts.as_slice() else { panic!("one group, not {}", texts.len()) };
    let count = |part: &str| text.matches(part).count();
    assert_eq!((count("for ("), count("__syncthreads"), count(" = v")), (1, 0, 2), "{text}");
}

/// What `kernels/check` compiles with NVRTC. `CELLWRIGHT_UPDATE=1` renews it.
#[test]
fn texts_are_those_that_are_checked() {
    let gru = of_shapes(&[("weight_ih", &[135, 37]), ("weight_hh", &[135, 45]), ("bias_ih", &[135]), ("bias_hh", &[135])]);
    let softmax = Draft::new("softmax").input("x", Datatype::Fp32, &[300]).weight(Tensor::from_f32("w", &[300, 500], &vec![0.5; 150_000]));
    let softmax = softmax.operator("MatMul", &["x", "w"], &["y"]).operator("Softmax", &["y"], &["p"]).with("axis", -1);
    let softmax = softmax.operator("ArgMax", &["p"], &["best"]).with("axis", -1).with("keepdims", 0);
    let softmax = softmax.output("p", Datatype::Fp32, &[500]).output("best", Datatype::Int64, &[]);
    let drafts = [
        ("lstm", cells::lstm("lstm", 37, 45, &weight)),
        ("gru", cells::gru("gru", 37, 45, &gru)),
        ("softmax", softmax),
        ("lookup", cells::countdown(8)),
    ];
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, draft) in drafts {
        found.extend(texts(draft).into_iter().enumerate().map(|(number, text)| (format!("{name}_{number}.cu"), text)));
    }
    for precision in [Precision::Bf16, Precision::F16] {
        let draft =
            Draft::new("two layers").input("x", Datatype::Fp32, &[300]).weight(Tensor::from_f32("w", &[300, 300], &vec![0.5; 90_000]));
        let draft = draft.operator("MatMul", &["x", "w"], &["a"]).operator("Tanh", &["a"], &["b"]).operator("MatMul", &["b", "w"], &["y"]);
        let texts = texts_on(draft.output("y", Datatype::Fp32, &[300]).at(precision), true);
        found.extend(texts.into_iter().enumerate().map(|(number, text)| (format!("{precision}_{number}.cu"), text)));
    }
    let shape = cellwright_cell_graph::generate::shape_of(1);
    for cell in &cellwright_cell_graph::generate::model_of(shape, 1).cells {
        let plan = Plan::compile(cell, u64::MAX, Target { is_hopper: false, ..HOPPER }).expect("the worker can run it");
        let generated = (0..plan.steps.len()).filter_map(|step| generate(&plan, step).map(|generated| (step, generated)));
        found.extend(generated.map(|(step, generated)| (format!("{}_{step}.cu", cell.name), generated.source)));
    }
    for seed in [0, 3] {
        let Group { instructions, threads, kept, .. } = Group::new(seed);
        found.push((format!("random_{seed}.cu"), kernel(&instructions, threads, &kept).expect("it is known").source));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generated");
    for (name, text) in &found {
        let path = folder.join(name);
        if std::env::var_os("CELLWRIGHT_UPDATE").is_some() {
            std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, text)).expect("the tests' folder can be written");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == *text, "{name} is another text: run this test with CELLWRIGHT_UPDATE=1");
    }
    let files = std::fs::read_dir(&folder).expect("a folder of texts").count();
    assert_eq!(files, found.len(), "a file of {} is none of these", folder.display());
}

/// A device with a group's memory on it.
struct Bench {
    driver: Emulated,
    stream: Stream,
    frame: DeviceAddress,
}

impl Bench {
    fn put(&mut self, bytes: &[u8]) -> DeviceAddress {
        let at = self.driver.allocate(bytes.len().max(1)).expect("there is room");
        self.driver.write(self.stream, at, bytes).expect("the device is there");
        at
    }

    /// Runs a kernel over the rows as they were; what they are then.
    fn run(&mut self, group: &Group, launch: &Launch, arguments: &[u8]) -> Vec<u8> {
        let mut rows = group.rows.clone();
        self.driver.write(self.stream, self.frame, &rows).expect("the device is there");
        // SAFETY: the kernel takes these arguments, whose memory is the bench's.
        unsafe { self.driver.launch(self.stream, launch, arguments) }.expect("it can be launched");
        self.driver.read(self.stream, self.frame, &mut rows).expect("the kernel ran");
        rows
    }
}

/// What the interpreter and the generated kernel leave.
fn both(group: &Group, seed: u64) -> [Vec<u8>; 2] {
    let mut driver = Emulated::new(&Emulation { seed, compiles: true, ..Emulation::default() });
    let stream = driver.stream().expect("a stream");
    let frame = driver.allocate(group.rows.len()).expect("there is room");
    let mut bench = Bench { driver, stream, frame };
    let blobs: Vec<u64> = group.blobs.iter().map(|blob| bench.put(blob).0).collect();
    let mut placed = group.instructions.clone();
    for operand in placed.iter_mut().flat_map(|placed| &mut placed.source).filter(|operand| operand.is_address != 0) {
        operand.at = blobs[operand.at as usize];
    }
    let listed = bench.put(bytes_of_all(&placed));
    let arguments = GroupArguments { frame: frame.0, instructions: listed.0, stride: group.stride, count: placed.len() as u32, rows_at: 0 };
    let kernel_of = bench.driver.kernel("group").expect("a kernel");
    let launch = Launch { kernel: kernel_of, grid: [ROWS, 1, 1], threads: group.threads, shared_bytes: 0, cooperative: false };
    let interpreted = bench.run(group, &launch, bytes_of(&arguments));
    let generated = kernel(&group.instructions, group.threads, &group.kept).expect("it is known");
    let compiled = bench.driver.compiled(&generated.source).expect("the device is there").expect("it compiles");
    let addresses: Vec<u64> = generated.blobs.iter().map(|blob| blobs[*blob]).collect();
    let listed = bench.put(bytes_of_all(&addresses));
    let arguments = CompiledGroupArguments { frame: frame.0, blobs: listed.0, stride: group.stride, padding: 0, rows_at: 0 };
    let compiled = bench.run(group, &Launch { kernel: compiled, ..launch }, bytes_of(&arguments));
    [interpreted, compiled]
}

#[test]
fn random_groups_leave_what_the_interpreter_leaves() {
    let mut seen = std::collections::BTreeSet::new();
    let (mut refused, mut rounded) = (0, std::collections::BTreeSet::new());
    for seed in 0..16 {
        let group = Group::new(seed);
        seen.extend(group.instructions.iter().map(|instruction| instruction.op));
        rounded
            .extend(group.instructions.iter().map(|instruction| instruction.result[0].kind).filter(|kind| random::ROUNDED.contains(kind)));
        let [interpreted, compiled] = both(&group, seed);
        for row in 0..ROWS as usize {
            let of = |bytes: &[u8], span: &Range<u64>| group.bits(row, bytes, span);
            for span in group.kept.iter().chain([&(0..32)]) {
                assert_eq!(of(&compiled, span), of(&interpreted, span), "seed {seed}, row {row}, bytes {span:?}");
            }
            refused += usize::from(interpreted[row * group.stride as usize + 4]);
        }
    }
    let all: std::collections::BTreeSet<u32> = crate::abi::op::ALL.iter().map(|(_, number)| *number).collect();
    assert_eq!(seen, all, "every operation was among them");
    assert_eq!(rounded.len(), random::ROUNDED.len(), "and roundings to either format");
    assert!((1..16 * ROWS as usize).contains(&refused), "{refused} rows were refused");
}
