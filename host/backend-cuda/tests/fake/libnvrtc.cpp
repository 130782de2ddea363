// NVRTC's library, as far as this crate calls it: it compiles nothing, and is as strict as the real one where this crate could get it wrong.
//
// A text is taken if it includes what it was given; one with the word `refused` is not, and the log says so. Built with LACKING it lacks a function.
#include <cstdint>
#include <cstring>
#include <string>

namespace {

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string text, names, log;
    bool compiled = false;
};

// What the driver's library takes for machine code.
constexpr char CODE[] = "\177ELF of a group";

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int result) { return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
int nvrtcVersion(int* major, int* minor) { *major = 13, *minor = 0; return SUCCESS; }
int nvrtcGetNumSupportedArchs(int* count) { *count = 2; return SUCCESS; }
int nvrtcGetSupportedArchs(int* numbers) { numbers[0] = 80, numbers[1] = 90; return SUCCESS; }
int nvrtcCreateProgram(Program** program, const char* text, const char*, int count, const char* const* headers, const char* const* names) {
    if (!text || count < 1) return INVALID_INPUT;
    *program = new Program{text, "", "", false};
    for (int i = 0; i < count; ++i) {
        // A header is a text, and none is empty.
        if (std::strlen(headers[i]) < 8) return INVALID_INPUT;
        (*program)->names.append(names[i]).append(" ");
    }
    return SUCCESS;
}
int nvrtcDestroyProgram(Program** program) {
    if (!*program) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    std::string all;
    for (int i = 0; i < count; ++i) all.append(options[i]).append(" ");
    if (all.find("--fmad=false") == std::string::npos || all.find("--gpu-architecture=sm_90 ") == std::string::npos) return INVALID_OPTION;
    if (program->names.find("group_stretches.cuh") == std::string::npos || program->text.find("refused") != std::string::npos) {
        program->log = "compiled_group.cu(1): error: this text is refused";
        return COMPILATION;
    }
    program->compiled = true;
    return SUCCESS;
}
int nvrtcGetCUBINSize(Program* program, size_t* bytes) { *bytes = sizeof CODE; return program->compiled ? SUCCESS : INVALID_PROGRAM; }
#ifndef LACKING
int nvrtcGetCUBIN(Program* program, char* code) {
    std::memcpy(code, CODE, sizeof CODE);
    return program->compiled ? SUCCESS : INVALID_PROGRAM;
}
#endif
int nvrtcGetProgramLogSize(Program* program, size_t* bytes) { *bytes = program->log.size() + 1; return SUCCESS; }
int nvrtcGetProgramLog(Program* program, char* log) { std::memcpy(log, program->log.c_str(), program->log.size() + 1); return SUCCESS; }

}  // extern "C"
