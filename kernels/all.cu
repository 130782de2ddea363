// Every kernel, in one translation unit: what is compiled into one file for each architecture, and what the emulation includes. A new
// kernel's file is added here and nowhere else.
#include "fill.cu"
#include "product.cu"
#include "best.cu"
#include "wide.cu"
#include "recurrent.cu"
#include "turns.cu"
#include "lstm_rows.cu"
#include "transfer.cu"
#include "group.cu"
#include "spans.cu"
