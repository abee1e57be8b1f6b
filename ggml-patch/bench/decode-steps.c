// decode-steps: runs a decoder over given tokens, one in each step, for a tool that watches what its steps read
//
//     decode-steps MODEL SAMPLES CROSS RULE BUDGET N_PROMPT TOKEN...
//
// SAMPLES is raw audio, mono 16 kHz floats. The encoder takes minutes in a simulator, and all arms shall read the same:
// what it leaves in the cross-attention cache is taken from the file CROSS or, if there is none, written there.
// The first N_PROMPT tokens are the prompt, each of the others is a step. RULE is "stock" for a library without views.
// So that caches hold what they hold between two steps, the prompt and a step come once before those that are watched.
// What is watched begins and ends where the tool is told so:
//   callgrind  by its client requests, if compiled with -DDECODE_STEPS_CALLGRIND
//   perf stat  by its --control file descriptors, in the environment: DECODE_STEPS_PERF=CONTROL,ACK
// `pyharness bench dram` compiles it against our library and runs it with either one: a stock library has no whisper_kv_*.

#define _GNU_SOURCE // RTLD_NEXT

#include "whisper.h"
#include "whisper-kv-view.h"

#include "ggml-backend.h"

#ifdef DECODE_STEPS_CALLGRIND
#include <valgrind/callgrind.h>
#else // machines without valgrind have no such header
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_STOP_INSTRUMENTATION
#endif

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma weak whisper_kv_rule_from_name
#pragma weak whisper_kv_view_default_params
#pragma weak whisper_kv_view_set

#define N_SAMPLES (30*WHISPER_SAMPLE_RATE) // that are encoded
#define N_THREADS 1                        // caches are watched as one core sees them

static void fail(const char * what) {
    fprintf(stderr, "decode-steps: %s\n", what);
    exit(1);
}

static void perf_control(const char * command) {
    const char * fds = getenv("DECODE_STEPS_PERF");
    int  control, ack;
    char answer[8];

    if (!fds) {
        return;
    }
    if (sscanf(fds, "%d,%d", &control, &ack) != 2 || write(control, command, strlen(command)) < 0 ||
        read(ack, answer, sizeof(answer)) <= 0) {
        fail("perf does not answer");
    }
}

static void set_view(struct whisper_context * ctx, const char * rule, int budget) {
    struct whisper_kv_view_params view = { .size = sizeof(view) };

    whisper_kv_view_default_params(&view);
    view.rule   = whisper_kv_rule_from_name(rule);
    view.budget = budget;

    if (whisper_kv_view_set(ctx, &view) != 0) {
        fail("the view is refused");
    }
}

//
// the encoder, or what it once gave
//

static FILE * cross_file    = NULL;  // while the encoder runs
static bool   cross_is_done = false; // the file has it all

// The last of the encoder's graphs copies keys and values into the cache, and only this one ends with a copy.
static void exchange_cross(struct ggml_cgraph * graph) {
    for (int i = 0; ggml_graph_node(graph, -1)->op == GGML_OP_CPY && i < ggml_graph_n_nodes(graph); ++i) {
        struct ggml_tensor * node = ggml_graph_node(graph, i);
        const size_t         size = ggml_nbytes(node);

        if (node->op == GGML_OP_CPY &&
            (cross_is_done ? fread(node->data, 1, size, cross_file) : fwrite(node->data, 1, size, cross_file)) != size) {
            fail("the file of the cross-attention cache is cut short");
        }
    }
}

// stands before ggml's function of this name, which libwhisper calls
enum ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t sched, struct ggml_cgraph * graph) {
    static enum ggml_status (*compute)(ggml_backend_sched_t, struct ggml_cgraph *) = NULL;

    if (!compute) {
        *(void **) &compute = dlsym(RTLD_NEXT, "ggml_backend_sched_graph_compute");
    }

    const enum ggml_status status = cross_is_done && cross_file ? GGML_STATUS_SUCCESS : compute(sched, graph);

    if (cross_file) {
        exchange_cross(graph);
    }

    return status;
}

static void encode(struct whisper_context * ctx, const char * path_samples, const char * path_cross) {
    float * samples = malloc(N_SAMPLES*sizeof(float));
    FILE  * file    = fopen(path_samples, "rb");

    if (!samples || !file) {
        fail("the samples cannot be read");
    }

    const int n = (int) fread(samples, sizeof(float), N_SAMPLES, file);

    cross_is_done = access(path_cross, R_OK) == 0;
    cross_file    = fopen(path_cross, cross_is_done ? "rb" : "wb");
    if (!cross_file) {
        fail("the file of the cross-attention cache cannot be opened");
    }

    if (whisper_pcm_to_mel(ctx, samples, n, N_THREADS) != 0 || whisper_encode(ctx, 0, N_THREADS) != 0 || fclose(cross_file) != 0) {
        fail("the samples cannot be encoded");
    }
    cross_file = NULL;

    fclose(file);
    free(samples);
}

//
// steps
//

static void decode(struct whisper_context * ctx, const whisper_token * tokens, int n, int n_past) {
    if (whisper_decode(ctx, tokens, n, n_past, N_THREADS) != 0) {
        fail("a step cannot be decoded");
    }
}

int main(int argc, char ** argv) {
    const int n_prompt = argc > 6 ? atoi(argv[6]) : 0;
    const int n_tokens = argc - 7;

    if (n_prompt < 1 || n_tokens <= n_prompt) {
        fail("usage: decode-steps MODEL SAMPLES CROSS RULE BUDGET N_PROMPT TOKEN...");
    }

    whisper_token * tokens = malloc(n_tokens*sizeof(whisper_token));
    for (int i = 0; i < n_tokens; ++i) {
        tokens[i] = atoi(argv[7 + i]);
    }

    struct whisper_context_params params = whisper_context_default_params();
    params.use_gpu = false;

    struct whisper_context * ctx = whisper_init_from_file_with_params(argv[1], params);
    if (!ctx) {
        fail("the model cannot be loaded");
    }
    if (strcmp(argv[4], "stock") != 0) {
        set_view(ctx, argv[4], atoi(argv[5]));
    }
    encode(ctx, argv[2], argv[3]);

    CALLGRIND_START_INSTRUMENTATION;

    decode(ctx, tokens, n_prompt, 0);
    decode(ctx, tokens + n_prompt, 1, n_prompt);
    decode(ctx, tokens, n_prompt, 0);

    CALLGRIND_ZERO_STATS;
    perf_control("enable\n");

    for (int i = n_prompt; i < n_tokens; ++i) {
        decode(ctx, tokens + i, 1, i);
    }

    perf_control("disable\n");
    CALLGRIND_STOP_INSTRUMENTATION;

    whisper_free(ctx);
    free(tokens);

    return 0;
}
