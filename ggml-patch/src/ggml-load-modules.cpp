// ggml-load-modules: part of libggml in a portable build, whose CPU backend is a module for each kind of CPU
//
// Upstream leaves it to the program to load one, from the program's own folder; most of its programs, and every program
// that embeds libwhisper, would find no CPU at all. The modules stand beside this library, so it loads the best one
// itself. A program that asks for them again gets the same ones.

#include "ggml-backend.h"

#include <dlfcn.h>

#include <string>

__attribute__((constructor)) static void ggml_load_modules() {
    Dl_info info;
    if (!dladdr((const void *) ggml_backend_load_all_from_path, &info)) {
        return;
    }

    const std::string path = info.dli_fname;

    ggml_backend_load_all_from_path(path.substr(0, path.rfind('/') + 1).c_str());
}
