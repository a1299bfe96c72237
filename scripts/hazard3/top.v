// SPDX-License-Identifier: Apache-2.0
// A Hazard3 core as RP2350 has it, with its flash, its RAM and a console; main.cpp is the world outside.
//
//   0x0000_0000  two words that main.cpp fills: a jump to the program
//   0x1000_0000  flash, 4 MiB; an access waits `flash_wait` cycles
//   0x2000_0000  RAM, 520 KiB
//   0x4000_0000  a UART of the family 16550, registers 4 bytes apart; interrupt 0 while a byte waits and its IER is set
`default_nettype none

module top (
    input wire clk,
    input wire rst_n,
    input wire [3:0] flash_wait,
    input wire rx_waiting,
    input wire [7:0] rx_data,
    output reg rx_take,
    output reg tx_valid,
    output reg [7:0] tx_data,
    output reg bad_access,
    output reg [31:0] bad_address
);

reg [31:0] boot [0:1] /*verilator public_flat_rw*/;
reg [31:0] flash [0:1048575] /*verilator public_flat_rw*/;
reg [31:0] ram [0:133119] /*verilator public_flat_rw*/;

localparam [3:0] BOOT = 4'h0, FLASH = 4'h1, RAM = 4'h2, UART = 4'h4;

// ---- The core's two buses (AHB5): an address phase, then a data phase that lasts until `ready`.

wire [31:0] i_haddr, d_haddr, d_hwdata;
wire [1:0] i_htrans, d_htrans;
wire [2:0] d_hsize;
wire d_hwrite;
wire i_ready, d_ready;
wire [31:0] i_rdata, d_rdata;

reg [31:0] i_addr, d_addr;
reg [3:0] i_wait, d_wait;
reg i_active, d_active, d_write;
reg [2:0] d_size;

assign i_ready = i_wait == 4'h0;
assign d_ready = d_wait == 4'h0;

function automatic [31:0] memory(input [31:0] addr);
    case (addr[31:28])
        BOOT: memory = boot[addr[2]];
        FLASH: memory = flash[addr[21:2]];
        default: memory = addr[19:2] < 18'd133120 ? ram[addr[18:2]] : 32'h0;
    endcase
endfunction

// ---- The console.

reg divisor_latch, rx_interrupt;
wire rx_ready = rx_waiting && rx_interrupt && !rx_take;
wire [2:0] uart_register = d_addr[4:2];
wire [31:0] uart = uart_register == 3'd0 ? {24'h0, rx_data} : uart_register == 3'd5 ? {26'h0, 1'b1, 4'h0, rx_ready} : 32'h0;

assign i_rdata = memory(i_addr);
assign d_rdata = d_addr[31:28] == UART ? uart : memory(d_addr);

wire [31:0] lanes = d_size == 3'd0 ? 32'hFF << {d_addr[1:0], 3'h0} : d_size == 3'd1 ? 32'hFFFF << {d_addr[1], 4'h0} : 32'hFFFFFFFF;
wire [31:0] merged = (d_rdata & ~lanes) | (d_hwdata & lanes);
wire d_done = d_active && d_ready;
wire known = d_addr[31:28] == BOOT || d_addr[31:28] == FLASH || d_addr[31:28] == UART
    || (d_addr[31:28] == RAM && d_addr[27:2] < 26'd133120);

always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
        {i_active, d_active, d_write, rx_take, tx_valid, divisor_latch, rx_interrupt, bad_access} <= 8'h0;
        {i_addr, d_addr, bad_address, i_wait, d_wait, d_size, tx_data} <= 115'h0;
    end else begin
        rx_take <= 1'b0;
        tx_valid <= 1'b0;
        if (i_ready) begin
            i_active <= i_htrans[1];
            i_addr <= i_haddr;
            i_wait <= i_htrans[1] && i_haddr[31:28] == FLASH ? flash_wait : 4'h0;
        end else
            i_wait <= i_wait - 4'h1;
        if (d_ready) begin
            d_active <= d_htrans[1];
            d_addr <= d_haddr;
            d_write <= d_hwrite;
            d_size <= d_hsize;
            d_wait <= d_htrans[1] && d_haddr[31:28] == FLASH ? flash_wait : 4'h0;
        end else
            d_wait <= d_wait - 4'h1;
        if (d_done && (!known || (d_write && (d_addr[31:28] == BOOT || d_addr[31:28] == FLASH)))) begin
            bad_access <= 1'b1;
            bad_address <= d_addr;
        end
        if (d_done && !d_write && d_addr[31:28] == UART && uart_register == 3'd0 && rx_ready)
            rx_take <= 1'b1;
        if (d_done && d_write)
            case (d_addr[31:28])
                RAM: ram[d_addr[18:2]] <= merged;
                UART:
                    case (uart_register)
                        3'd0:
                            if (!divisor_latch) begin
                                tx_valid <= 1'b1;
                                tx_data <= d_hwdata[7:0];
                            end
                        3'd1: if (!divisor_latch) rx_interrupt <= d_hwdata[0];
                        3'd3: divisor_latch <= d_hwdata[7];
                        default: ;
                    endcase
                default: ; // flash is read only
            endcase
    end
end

// ---- The core.

wire power_request, unblock;
reg power_granted;
always @(posedge clk or negedge rst_n)
    if (!rst_n) power_granted <= 1'b1;
    else power_granted <= power_request;

/* verilator lint_off PINMISSING */
hazard3_cpu_2port #(
    .RESET_VECTOR(32'h0), .MTVEC_INIT(32'h0), .MTVEC_WMASK(32'hFFFFFFFD),
    .EXTENSION_A(1), .EXTENSION_C(1), .EXTENSION_M(1), .EXTENSION_ZBA(1), .EXTENSION_ZBB(1), .EXTENSION_ZBC(0), .EXTENSION_ZBS(1),
    .EXTENSION_ZBKB(1), .EXTENSION_ZCB(1), .EXTENSION_ZCMP(1), .EXTENSION_ZIFENCEI(1), .EXTENSION_XH3BEXTM(1),
    .EXTENSION_XH3IRQ(1), .EXTENSION_XH3PMPM(1), .EXTENSION_XH3POWER(1),
    .CSR_M_MANDATORY(1), .CSR_M_TRAP(1), .CSR_COUNTER(1), .U_MODE(1), .PMP_REGIONS(0), .DEBUG_SUPPORT(0),
    .NUM_IRQS(32), .IRQ_PRIORITY_BITS(4), .IRQ_INPUT_BYPASS(32'h0), .REDUCED_BYPASS(0), .MULDIV_UNROLL(2), .MUL_FAST(1),
    .MUL_FASTER(1), .MULH_FAST(1), .FAST_BRANCHCMP(1), .RESET_REGFILE(1), .BRANCH_PREDICTOR(1)
) core (
    .clk(clk), .clk_always_on(clk), .rst_n(rst_n), .pwrup_req(power_request), .pwrup_ack(power_granted), .unblock_out(unblock),
    .unblock_in(unblock),
    .i_haddr(i_haddr), .i_htrans(i_htrans), .i_hready(i_ready), .i_hresp(1'b0), .i_hrdata(i_rdata),
    .d_haddr(d_haddr), .d_hwrite(d_hwrite), .d_htrans(d_htrans), .d_hsize(d_hsize), .d_hready(d_ready), .d_hresp(1'b0),
    .d_hexokay(1'b1), .d_hwdata(d_hwdata), .d_hrdata(d_rdata),
    .dbg_req_halt(1'b0), .dbg_req_halt_on_reset(1'b0), .dbg_req_resume(1'b0), .dbg_data0_rdata(32'h0), .dbg_instr_data(32'h0),
    .dbg_instr_data_vld(1'b0), .dbg_sbus_addr(32'h0), .dbg_sbus_write(1'b0), .dbg_sbus_size(2'h0), .dbg_sbus_vld(1'b0),
    .dbg_sbus_wdata(32'h0), .irq({31'h0, rx_ready}), .soft_irq(1'b0), .timer_irq(1'b0)
);

endmodule
