/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_mlperf.h"

#include <string.h>

#include "microc_port.h"

#define COMMAND_SIZE 80u
#define DEFAULT_WARMUP 10u
#define DECIMALS 6
#define LARGEST_REAL 1.0e12f /* what is beyond it does not fit 64 bits with its decimals */

struct session {
    const struct microc_mlperf *benchmark;
    uint64_t clock; /* ticks since the start */
    uint32_t last;  /* reading of the counter at `clock` */
    uint32_t expected;
    uint32_t loaded;
    char command[COMMAND_SIZE + 1u];
    uint8_t length;
};

static void say(const char *text)
{
    (void)microc_port_write((const uint8_t *)text, strlen(text));
}

static void say_number(uint64_t number)
{
    char digits[21];
    size_t at = sizeof digits - 1u;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + (char)(number % 10u));
        number /= 10u;
    } while (number != 0u);
    say(digits + at);
}

static void say_real(float value)
{
    uint64_t scaled;
    uint32_t unit = 1;
    int k;
    if (value != value) {
        say("nan");
        return;
    }
    if (value < 0.0f) {
        say("-");
        value = -value;
    }
    if (value > LARGEST_REAL) {
        say("inf");
        return;
    }
    for (k = 0; k < DECIMALS; k++) {
        unit *= 10u;
    }
    scaled = (uint64_t)((double)value * (double)unit + 0.5);
    say_number(scaled / unit);
    say(".");
    for (unit /= 10u; unit != 0u; unit /= 10u) {
        say_number(scaled / unit % 10u);
    }
}

static void say_line(const char *before, uint64_t number, const char *after)
{
    say(before);
    say_number(number);
    say(after);
    say("\r\n");
}

/*
 * The counter wraps after 2^32 ticks. It is read whenever a byte may have arrived and after every run: a run is timed right, a pause
 * of more than 2^32 ticks, in which the core may sleep, is told too short.
 */
static uint64_t tell_time(struct session *session)
{
    uint32_t now = microc_port_ticks();
    session->clock += (uint32_t)(now - session->last);
    session->last = now;
    return session->clock;
}

static void say_timestamp(struct session *session)
{
    uint64_t clock = tell_time(session);
    uint64_t seconds = clock / MICROC_PORT_TICK_HZ;
    say_line("m-lap-us-", seconds * 1000000u + clock % MICROC_PORT_TICK_HZ * 1000000u / MICROC_PORT_TICK_HZ, "");
}

/* The next word of a command, ended by a zero; *rest moves behind it. NULL when there is none. */
static char *next_word(char **rest)
{
    char *word = *rest;
    char *end;
    while (*word == ' ') {
        word++;
    }
    end = word;
    while (*end != ' ' && *end != '\0') {
        end++;
    }
    *rest = *end == '\0' ? end : end + 1;
    *end = '\0';
    return *word == '\0' ? NULL : word;
}

/* A decimal number, or -1. */
static int32_t read_number(const char *word)
{
    int32_t number = 0;
    if (word == NULL) {
        return -1;
    }
    for (; *word != '\0'; word++) {
        if (*word < '0' || *word > '9' || number > 99999999) {
            return -1;
        }
        number = number * 10 + (*word - '0');
    }
    return number;
}

static int read_digit(char letter)
{
    if (letter >= '0' && letter <= '9') {
        return letter - '0';
    }
    letter = (char)(letter | 0x20);
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

static float read_element(const struct microc_tensor *tensor, uint32_t index)
{
    const uint8_t *bytes = tensor->data;
    int16_t half;
    float single;
    switch (tensor->dtype) {
    case MICROC_INT8:
        return (float)((const int8_t *)tensor->data)[index];
    case MICROC_INT16:
        (void)memcpy(&half, bytes + 2u * index, sizeof half);
        return (float)half;
    case MICROC_FLOAT32:
        (void)memcpy(&single, bytes + 4u * index, sizeof single);
        return single;
    default:
        return (float)bytes[index];
    }
}

static uint32_t count_elements(const struct microc_tensor *tensor)
{
    uint32_t bytes = tensor->dtype == MICROC_FLOAT32 ? 4u : tensor->dtype == MICROC_INT16 ? 2u : 1u;
    return tensor->size / bytes;
}

static void say_error(const struct microc_tensor *tensors)
{
    float sum = 0.0f;
    uint32_t count = count_elements(&tensors[1]);
    uint32_t k;
    for (k = 0; k < count; k++) {
        float difference = read_element(&tensors[1], k) - read_element(&tensors[0], k);
        sum += difference * difference;
    }
    say_real(sum / (float)count);
}

static void say_results(const struct microc_mlperf *benchmark)
{
    const struct microc_tensor *output = &benchmark->model->tensors[1];
    uint32_t k;
    say("m-results-[");
    if (benchmark->error) {
        say_error(benchmark->model->tensors);
    } else {
        for (k = 0; k < count_elements(output); k++) {
            say(k == 0u ? "" : ",");
            say_real(benchmark->scale * (read_element(output, k) - (float)benchmark->zero_point));
        }
    }
    say("]\r\n");
}

static void run(struct session *session, uint32_t times)
{
    const struct microc_model *model = session->benchmark->model;
    while (times-- != 0u) {
        (void)model->run(0, (uint32_t)model->kernel_count - 1u, NULL, NULL);
        (void)tell_time(session);
    }
}

static void infer(struct session *session, char *rest)
{
    const char *times_word = next_word(&rest);
    const char *warmup_word = next_word(&rest);
    int32_t times = times_word == NULL ? 1 : read_number(times_word);
    int32_t warmup = warmup_word == NULL ? (int32_t)DEFAULT_WARMUP : read_number(warmup_word);
    if (times <= 0) {
        say("e-[Inference iterations must be >0]\r\n");
        return;
    }
    if (warmup < 0) {
        say("e-[Inference warmup must be >=0]\r\n");
        return;
    }
    say_line("m-warmup-start-", (uint64_t)warmup, "");
    run(session, (uint32_t)warmup);
    say("m-warmup-done\r\n");
    say_line("m-infer-start-", (uint64_t)times, "");
    say_timestamp(session);
    run(session, (uint32_t)times);
    say_timestamp(session);
    say("m-infer-done\r\n");
    say_results(session->benchmark);
}

static void load(struct session *session, const char *word)
{
    int32_t size = read_number(word);
    if (word == NULL) {
        say("e-[Command 'db load' requires the # of bytes]\r\n");
    } else if (size <= 0 || (uint32_t)size > session->benchmark->model->tensors[0].size) {
        say_line("e-[Command 'db load' takes 1 to ", session->benchmark->model->tensors[0].size, " bytes]");
    } else {
        session->expected = (uint32_t)size;
        session->loaded = 0;
        say_line("m-[Expecting ", (uint64_t)size, " bytes]");
    }
}

static void take_bytes(struct session *session, const char *digits)
{
    uint8_t *bytes = session->benchmark->model->tensors[0].data;
    for (; digits[0] != '\0'; digits += 2) {
        int high = read_digit(digits[0]);
        int low = digits[1] == '\0' ? -1 : read_digit(digits[1]);
        if (high < 0 || low < 0) {
            say("e-[Not pairs of hexadecimal digits]\r\n");
            return;
        }
        if (session->loaded == session->expected) {
            return; /* the rest of the digits is padding */
        }
        bytes[session->loaded++] = (uint8_t)(high * 16 + low);
        if (session->loaded == session->expected) {
            say("m-load-done\r\n");
        }
    }
}

static void print_bytes(const struct session *session)
{
    static const char hexadecimal[] = "0123456789abcdef";
    const uint8_t *bytes = session->benchmark->model->tensors[0].data;
    char pair[3] = {0};
    uint32_t k;
    for (k = 0; k < session->expected; k++) {
        pair[0] = hexadecimal[bytes[k] >> 4];
        pair[1] = hexadecimal[bytes[k] & 15u];
        say(k % 8u == 0u ? "m-buffer-" : "-");
        say(pair);
        say(k % 8u == 7u || k + 1u == session->expected ? "\r\n" : "");
    }
}

static void buffer(struct session *session, char *rest)
{
    const char *word = next_word(&rest);
    if (word == NULL) {
        say("e-[Command 'db' requires a subcommand]\r\n");
    } else if (strcmp(word, "load") == 0) {
        load(session, next_word(&rest));
    } else if (strcmp(word, "print") == 0) {
        print_bytes(session);
    } else {
        take_bytes(session, word);
    }
}

static void say_in_brackets(const char *before, const char *text)
{
    say(before);
    say(text);
    say("]\r\n");
}

static void obey(struct session *session)
{
    const struct microc_mlperf *benchmark = session->benchmark;
    char *rest = session->command;
    const char *word = next_word(&rest);
    if (word == NULL) {
        word = "";
    }
    if (strcmp(word, "name") == 0) {
        say_in_brackets("m-name-dut-[", benchmark->vendor);
    } else if (strcmp(word, "profile") == 0) {
        say("m-profile-[ULPMark for tinyML Firmware V0.0.1]\r\n");
        say_in_brackets("m-model-[", benchmark->model->name);
    } else if (strcmp(word, "timestamp") == 0) {
        say_timestamp(session);
    } else if (strcmp(word, "help") == 0) {
        say("m-help-[name, profile, timestamp, help, db load N, db HH.., db print, infer N [W], results]\r\n");
    } else if (strcmp(word, "db") == 0) {
        buffer(session, rest);
    } else if (strcmp(word, "infer") == 0) {
        infer(session, rest);
    } else if (strcmp(word, "results") == 0) {
        say_results(benchmark);
    } else {
        say_in_brackets("e-[Unknown command: ", word);
    }
    say("m-ready\r\n");
}

/* Every line that is sent begins so, and no command does. */
static int is_answer(const struct session *session)
{
    return session->length >= 2u && (session->command[0] == 'm' || session->command[0] == 'e') && session->command[1] == '-';
}

/* What a line end cuts off is no command: so a line that echoes, and gives the answers back, has none answered. What is longer
 * than a command can be is cut. */
static void take(struct session *session, char letter)
{
    if (letter == '\n') {
        session->length = 0;
    } else if (letter == '%') {
        int echoed = is_answer(session);
        session->command[session->length] = '\0';
        session->length = 0;
        if (!echoed) {
            obey(session);
        }
    } else if (letter != '\r' && session->length < COMMAND_SIZE) {
        session->command[session->length++] = letter;
    }
}

int microc_mlperf_serve(const struct microc_mlperf *benchmark)
{
    static struct session session;
    uint8_t chunk[16];
    (void)memset(&session, 0, sizeof session);
    session.benchmark = benchmark;
    session.last = microc_port_ticks();
    say("m-timestamp-mode-performance\r\nm-init-done\r\nm-ready\r\n");
    for (;;) {
        int count = microc_port_read(chunk, sizeof chunk);
        int k;
        if (count < 0) {
            return 0;
        }
        (void)tell_time(&session);
        for (k = 0; k < count; k++) {
            take(&session, (char)chunk[k]);
        }
    }
}
