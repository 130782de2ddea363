//! Plugin parameters: a table of `model.toml`, flattened to dotted names.

use cellwright_cell_graph::{Attribute, AttributeValue};
use toml::{Table, Value};

use crate::error::ManifestFault;

/// A parameter is named by all tables around it, too: thousands of them in a table of a long name would take thousands of times what the file has.
const NAME_BYTES_MAX: usize = 512;

/// Every value of the table, tables in it by dotted names, in the order of names.
pub(crate) fn flatten(table: &Table) -> Result<Vec<Attribute>, ManifestFault> {
    let mut parameters = Vec::new();
    collect("", table, &mut parameters)?;
    parameters.sort_by(|a, b| a.name.cmp(&b.name));
    match parameters.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(ManifestFault::DuplicateParameter(pair[0].name.clone())),
        None => Ok(parameters),
    }
}

/// The depth is bounded by what the TOML parser lets nest.
fn collect(prefix: &str, table: &Table, parameters: &mut Vec<Attribute>) -> Result<(), ManifestFault> {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if name.len() > NAME_BYTES_MAX {
            return Err(ManifestFault::LongName { begin: name.chars().take(64).collect(), bound: NAME_BYTES_MAX });
        }
        if let Value::Table(inner) = value {
            collect(&name, inner, parameters)?;
            continue;
        }
        match convert(value) {
            Ok(value) => parameters.push(Attribute { name, value }),
            Err(what) => return Err(ManifestFault::Parameter { name, what }),
        }
    }
    Ok(())
}

fn convert(value: &Value) -> Result<AttributeValue, &'static str> {
    Ok(match value {
        Value::Integer(int) => AttributeValue::Int(*int),
        Value::Float(float) => AttributeValue::Float(*float),
        Value::String(text) => AttributeValue::Text(text.clone()),
        Value::Boolean(truth) => AttributeValue::Truth(*truth),
        Value::Array(list) => convert_list(list)?,
        Value::Datetime(_) => return Err("a date or a time"),
        Value::Table(_) => return Err("a table"),
    })
}

fn convert_list(list: &[Value]) -> Result<AttributeValue, &'static str> {
    let ints = || list.iter().map(Value::as_integer).collect::<Option<Vec<_>>>().map(AttributeValue::Ints);
    let floats = || list.iter().map(Value::as_float).collect::<Option<Vec<_>>>().map(AttributeValue::Floats);
    let texts = || list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>().map(AttributeValue::Texts);
    if list.is_empty() {
        return Err("an empty list, whose elements could be of any type");
    }
    ints().or_else(floats).or_else(texts).ok_or("a list of mixed or unsuitable elements")
}
