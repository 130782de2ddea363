//! The text of a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use super::{Generated, Kind, Part, access, barriers, count, is_linear, register};
use crate::abi::{Arguments, CompiledGroupArguments, GroupInstruction, GroupOperand, flag, op};

/// Element types, as `abi_group.h` numbers them.
const F32: u32 = 0;
const BOOL: u32 = 4;

/// What an element is in C++: a BOOL the byte that it lies as.
const fn in_c(kind: u32) -> &'static str {
    match kind {
        F32 => "float",
        1 => "int64_t",
        2 => "int32_t",
        5 | 6 => "uint16_t",
        _ => "uint8_t",
    }
}

/// Whether an instruction is one that this module can write down: which those are that the lowering makes.
pub(super) fn is_known(instruction: &GroupInstruction) -> bool {
    let GroupInstruction { op: number, sources, results, axes, .. } = *instruction;
    let source = |at: usize| instruction.source[at].kind;
    let target = instruction.result[0].kind;
    let in_row = instruction.result.iter().all(|result| result.is_address == 0);
    let sizes = axes as usize <= instruction.extents.len() && count(instruction) > 0 && sources >= 1;
    let kinds = match number {
        op::COPY => sources == 1 && source(0) == target,
        op::CAST => sources == 1,
        op::NEG..=op::NOT => sources == 1 && (source(0) == F32) == (target == F32),
        op::ADD..=op::POW => sources == 2 && source(0) == source(1) && (source(0) == F32) == (target == F32),
        op::EQUAL..=op::OR => sources == 2 && source(0) == source(1) && target != F32,
        op::WHERE => sources == 3 && source(0) == BOOL && source(1) == target && source(2) == target,
        op::LOOKUP => sources == 2 && matches!(source(0), 1 | 2) && source(1) == target,
        op::SOFTMAX..=op::TOP => instruction.epsilon.is_finite(),
        _ => false,
    };
    in_row && sizes && kinds && (number >= op::SOFTMAX || results == 1)
}

struct Writer<'a> {
    instructions: &'a [GroupInstruction],
    text: String,
    /// Instructions that the compiler is to know.
    known: String,
    blobs: Vec<usize>,
}

/// Writes these parts down.
pub(super) fn write(instructions: &[GroupInstruction], parts: &[Part], threads: u32, kept: &[Range<u64>]) -> Generated {
    let mut writer = Writer { instructions, text: String::new(), known: String::new(), blobs: Vec::new() };
    let wanted: Vec<Range<u64>> = parts.iter().flat_map(|part| part.reads.iter().map(|access| access.span.clone())).collect();
    let is_wanted = |span: &Range<u64>| wanted.iter().chain(kept).any(|wanted| span.start < wanted.end && wanted.start < span.end);
    for (part, is_apart) in parts.iter().zip(barriers(parts)) {
        if is_apart {
            writer.line(1, "__syncthreads();");
        }
        match part.kind {
            Kind::Loop(count) => writer.elements(&part.members, (count, threads), &is_wanted),
            Kind::Check => writer.call(("check_indices", "row, first_bad"), part.members[0]),
            Kind::Stretches => writer.call(("run_stretches", "shared"), part.members[0]),
        }
    }
    let Writer { text: body, known, blobs, .. } = writer;
    let has = |kind: Kind| parts.iter().any(|part| part.kind == kind);
    let mut source = format!("#include \"group_stretches.cuh\"\n\n{known}\n");
    let name = CompiledGroupArguments::KERNEL;
    // Writing to a string does not fail.
    let _ = writeln!(
        source,
        "extern \"C\" __global__ void __launch_bounds__({threads}) {name}(const __grid_constant__ CompiledGroupArguments a) {{"
    );
    let mut line = |text: &str| {
        let _ = writeln!(source, "    {text}");
    };
    if has(Kind::Stretches) {
        line("SHARED(uint64_t, shared, 16);");
    }
    if has(Kind::Check) {
        line("SHARED(uint32_t, first_bad, 4);");
    }
    line("if (is_beyond(a.rows_at, blockIdx.x)) return;");
    line("begin_launch();");
    line("uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;");
    for number in 0..blobs.len() {
        line(&format!("uint8_t* const b{number} = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[{number}]);"));
    }
    let _ = write!(source, "{body}}}\nKERNEL({name}, CompiledGroupArguments)\n");
    Generated { source, blobs }
}

impl Writer<'_> {
    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.text, "{:1$}{text}", "", 4 * depth);
    }

    /// What holds a blob's address.
    fn blob(&mut self, number: usize) -> String {
        let place = self.blobs.iter().position(|known| *known == number).unwrap_or_else(|| {
            self.blobs.push(number);
            self.blobs.len() - 1
        });
        format!("b{place}")
    }

    fn base(&mut self, operand: &GroupOperand) -> String {
        if operand.is_address != 0 { self.blob(operand.at as usize) } else { format!("row + {}u", operand.at) }
    }

    /// A loop over elements: everything is loaded and computed, then what anybody wants is stored.
    fn elements(&mut self, members: &[usize], (count, threads): (u32, u32), is_wanted: &dyn Fn(&Range<u64>) -> bool) {
        self.line(1, &format!("for (uint32_t e = threadIdx.x; e < {count}u; e += {threads}u) {{"));
        let (mut stores, used) = (Vec::new(), self.used(members, is_wanted));
        for (position, number) in members.iter().enumerate().filter(|(_, number)| used.contains(number)) {
            let instruction = self.instructions[*number];
            let value = self.value(&instruction, &members[..position]);
            let result = &instruction.result[0];
            self.line(2, &format!("const {} v{number} = {value};", in_c(result.kind)));
            if is_wanted(&access(&instruction, result, 0).span) {
                let (base, index) = (self.base(result), index(&instruction, result));
                stores.push(format!("reinterpret_cast<{}*>({base})[{index}] = v{number};", in_c(result.kind)));
            }
        }
        stores.iter().for_each(|store| self.line(2, store));
        self.line(1, "}");
    }

    /// The members of a loop whose results anybody stores or goes on with.
    fn used(&self, members: &[usize], is_wanted: &dyn Fn(&Range<u64>) -> bool) -> BTreeSet<usize> {
        let mut used = BTreeSet::new();
        for (position, number) in members.iter().enumerate().rev() {
            let instruction = &self.instructions[*number];
            if used.contains(number) || is_wanted(&access(instruction, &instruction.result[0], 0).span) {
                used.insert(*number);
                used.extend(
                    (0..instruction.sources as usize)
                        .filter_map(|source| register(self.instructions, &members[..position], instruction, source)),
                );
            }
        }
        used
    }

    /// An element of a source, as it lies.
    fn source(&mut self, instruction: &GroupInstruction, number: usize, before: &[usize]) -> String {
        if let Some(member) = register(self.instructions, before, instruction, number) {
            return format!("v{member}");
        }
        let operand = &instruction.source[number];
        let (base, mut index) = (self.base(operand), index(instruction, operand));
        if instruction.op == op::LOOKUP && number == 1 {
            let which = self.number(instruction, 0, before);
            let rows = instruction.table_rows;
            index = format!("max(table_row({which}, {rows}ll), static_cast<int64_t>(0)) * {}ll + {index}", instruction.k);
        }
        format!("reinterpret_cast<const {}*>({base})[{index}]", in_c(operand.kind))
    }

    /// The same as one computes with it: a float, or an integer of 64 bits.
    fn number(&mut self, instruction: &GroupInstruction, number: usize, before: &[usize]) -> String {
        let element = self.source(instruction, number, before);
        match instruction.source[number].kind {
            F32 => element,
            BOOL => format!("static_cast<int64_t>({element} != 0)"),
            _ => format!("static_cast<int64_t>({element})"),
        }
    }

    /// What an instruction leaves for an element, as it will lie.
    fn value(&mut self, instruction: &GroupInstruction, before: &[usize]) -> String {
        let number = instruction.op;
        match number {
            op::COPY => return self.source(instruction, 0, before),
            op::LOOKUP => return self.source(instruction, 1, before),
            op::WHERE => {
                let [which, one, other] = [0, 1, 2].map(|number| self.source(instruction, number, before));
                return format!("{which} != 0 ? {one} : {other}");
            }
            _ => {}
        }
        let (kind, target) = (instruction.source[0].kind, instruction.result[0].kind);
        let x = self.number(instruction, 0, before);
        let y = if instruction.sources > 1 { self.number(instruction, 1, before) } else { String::new() };
        let is_float = kind == F32;
        let field = if target == F32 { "f" } else { "i" };
        let value = match number {
            op::CAST => {
                let x = if is_float { format!("Number{{{x}, 0}}") } else { format!("Number{{0.0f, {x}}}") };
                format!("cast_number({x}, {kind}u, {target}u).{field}")
            }
            op::NEG..=op::NOT => format!("unary_{}({number}u, {x})", if is_float { "float" } else { "integer" }),
            _ if is_float => format!("binary_float({number}u, {x}, {y}).{field}"),
            _ => format!("binary_integer({number}u, {x}, {y})"),
        };
        match target {
            F32 => value,
            BOOL => format!("static_cast<uint8_t>({value} != 0)"),
            _ => format!("static_cast<{}>({value})", in_c(target)),
        }
    }

    /// A call of a function of the interpreter's, for an instruction that the compiler knows. What it does not know is where blobs lie.
    fn call(&mut self, (function, rest): (&str, &str), number: usize) {
        let instruction = self.instructions[number];
        let listed = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(", ");
        let operand = |operand: &GroupOperand| {
            let strides = listed(&mut operand.strides.iter().map(i32::to_string));
            format!("{{0u, {{{strides}}}, {}u, 0u}}", operand.kind)
        };
        let sources = listed(&mut instruction.source.iter().map(operand));
        let results = listed(&mut instruction.result.iter().map(operand));
        let extents = listed(&mut instruction.extents.iter().map(|extent| format!("{extent}u")));
        let GroupInstruction { op, axes, outer_axes, outer, inner, sources: count, results: mask, k, epsilon, table_rows, .. } =
            instruction;
        let flags = instruction.flags & !flag::BARRIER;
        let _ = writeln!(
            self.known,
            "static __device__ constexpr GroupInstruction in{number} = {{{op}u, {flags}u, {axes}u, {outer_axes}u, {{{extents}}}, {outer}u, {inner}u, {count}u, \
             {mask}u, {k}u, {epsilon:e}f, {table_rows}u, {{{sources}}}, {{{results}}}}};"
        );
        let of_sources = listed(&mut instruction.source.iter().map(|operand| self.base(operand)));
        let of_results = listed(&mut instruction.result.iter().map(|operand| self.base(operand)));
        self.line(1, &format!("{function}(in{number}, GroupBases{{{{{of_sources}}}, {{{of_results}}}}}, {rest});"));
    }
}

/// Where an operand's element lies for element `e` of the instruction's, in elements.
fn index(instruction: &GroupInstruction, operand: &GroupOperand) -> String {
    if is_linear(instruction, operand) {
        return "e".to_owned();
    }
    let reach = |axis: usize| i64::from(operand.strides[axis]).abs() * (i64::from(instruction.extents[axis]) - 1);
    let axes = instruction.axes as usize;
    let wide = (0..axes).map(reach).sum::<i64>() > i64::from(i32::MAX);
    let integer = if wide { "int64_t" } else { "int32_t" };
    let (mut inner, mut terms) = (1_u64, BTreeMap::new());
    for axis in (0..axes).rev() {
        let (extent, stride) = (u64::from(instruction.extents[axis]), operand.strides[axis]);
        if extent > 1 && stride != 0 {
            let is_first = inner * extent >= u64::from(count(instruction));
            let quotient = if inner == 1 { "e".to_owned() } else { format!("e / {inner}u") };
            let digit = if is_first { quotient } else { format!("{quotient} % {extent}u") };
            terms.insert(axis, format!("static_cast<{integer}>({digit}) * {stride}"));
        }
        inner *= extent;
    }
    if terms.is_empty() { "0".to_owned() } else { terms.into_values().collect::<Vec<_>>().join(" + ") }
}
